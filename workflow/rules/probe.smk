# `snakemake probe`: the largest batch per device that fits, for each setting; the config with what was found is
# results/probed.yaml. `snakemake largest_model`: the deepest network that fits, beside what the formula says.
use rule look as probe_job with:
    input:
        files.probe,
    output:
        "results/probe/{setting}.json",
    pathvars:
        job="probe/{setting}",
    conda:
        jobs.probe_job.conda
    resources:
        **jobs.probe_job.resources,
    params:
        **jobs.probe_job.params,


rule probed:
    input:
        files.probed,
    output:
        PROBED,
    log:
        "results/logs/probed.log",
    benchmark:
        "results/benchmarks/probed.tsv"
    localrule: True
    message:
        "Writing {output}"
    run:
        driver.write_probed(output[0])


# Shown at the end of each call.
rule probe:
    input:
        PROBED,
    localrule: True
    message:
        "The largest batches that fit"


use rule look as largest_model_job with:
    input:
        files.largest_model,
    output:
        "results/largest_model/{setting}.json",
    pathvars:
        job="largest_model/{setting}",
    conda:
        jobs.largest_model_job.conda
    resources:
        **jobs.largest_model_job.resources,
    params:
        **jobs.largest_model_job.params,


# Shown at the end of each call. A report that is there gets its section on the largest models.
rule largest_model:
    input:
        files.answers("largest_model"),
    localrule: True
    message:
        "The largest models that fit"
