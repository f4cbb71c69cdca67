# `snakemake plan`: the jobs, and the hours at most to be spent, before anything is queued. Where jobs are given in
# minutes, it first measures what a step takes, and writes that down in results/speeds.
use rule look as speed with:
    input:
        files.speed,
    output:
        "results/speeds/{setting}.json",
    pathvars:
        job="speed/{setting}",
    conda:
        jobs.speed.conda
    resources:
        **jobs.speed.resources,
    params:
        **jobs.speed.params,


# It is shown at the end of the call. As with `status`, nothing is run or written but the speeds that are missing.
rule plan:
    input:
        files.speeds,


# `snakemake status`: what is done, running, queued and still to do. It changes nothing, and may be asked for while a
# driver works on the same results, on a cluster too. Shown at the end of the call. Nothing is run, and so nothing written:
# results may be read-only.
rule status:
    localrule: True


rule record_plan:
    input:
        files.record_plan,
    output:
        "results/plan.json",
    log:
        "results/logs/record_plan.log",
    benchmark:
        "results/benchmarks/record_plan.tsv"
    localrule: True
    message:
        "Writing the plan"
    run:
        driver.write_plan(output[0])
