# What is really there: on a cluster, a short job for each shape and stack looks at its nodes before anything trains on
# them. A fault that it finds fails it, with the remedy; what depends on it is then not submitted.
use rule look as preflight_job with:
    input:
        files.preflight,
    output:
        "results/preflight/{preflight}/facts.json",
    pathvars:
        job="preflight/{preflight}",
    priority: jobs.order.of_preflight
    conda:
        jobs.preflight_job.conda
    resources:
        **jobs.preflight_job.resources,
    params:
        **jobs.preflight_job.params,


# `snakemake preflight`: one page about PyTorch on this cluster, and nothing else. Shown at the end of each call.
rule preflight:
    input:
        files.preflights,
    localrule: True
    message:
        "Preflight"
