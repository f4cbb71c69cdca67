# `snakemake selftest`: does everything work on these devices? Gates, runs, each of them killed and resumed, planted
# faults, probes and a trained model in C++; then one page, results/selftest.md, of what worked and what did not. A part
# that fails ends no other one. The configs in config/selftest say what is tested; other calls plan nothing of it.
use rule look as selftest_part with:
    input:
        selftest.part,
    output:
        "results/selftest/{part}/{place}.json",
    pathvars:
        job="selftest/{part}/{place}",
    wildcard_constraints:
        part="|".join(PARTS),
    conda:
        jobs.selftest_part.conda
    resources:
        **jobs.selftest_part.resources,
    params:
        **jobs.selftest_part.params,


# The page is written at the end of each call, whatever has failed.
rule selftest:
    input:
        selftest.all,
    localrule: True
    message:
        "The self-test is done"
