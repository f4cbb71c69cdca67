# `snakemake probe`: the largest batch per device that fits, for each setting; the config with what was found is
# results/probed.yaml. `snakemake largest_model`: the deepest network that fits, beside what the formula says.
use rule look as probe_job with:
    input:
        files.probe,
    output:
        "results/probe/{setting}.json",
    log:
        "results/logs/probe/{setting}.log",
    benchmark:
        "results/benchmarks/probe/{setting}.tsv"
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


# Without any output: it is shown each time.
rule probe:
    input:
        PROBED,
    log:
        "results/logs/probe.log",
    localrule: True
    message:
        "The largest batches that fit"
    run:
        shown.batches()


use rule look as largest_model_job with:
    input:
        files.largest_model,
    output:
        "results/largest_model/{setting}.json",
    log:
        "results/logs/largest_model/{setting}.log",
    benchmark:
        "results/benchmarks/largest_model/{setting}.tsv"
    conda:
        jobs.largest_model_job.conda
    resources:
        **jobs.largest_model_job.resources,
    params:
        **jobs.largest_model_job.params,


# Without any output: it is shown each time. A report that is there gets its section on the largest models.
rule largest_model:
    input:
        files.answers("largest_model"),
    log:
        "results/logs/largest_model.log",
    localrule: True
    message:
        "The largest models that fit"
    run:
        shown.models(log[0])
