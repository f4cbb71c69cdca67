# `snakemake card`: the task in words, with what each finding means for the strategies. It changes nothing. Shown at the
# end of the call.
rule card:
    localrule: True
    message:
        "Looking at the task"


# Where the login node lacks what a task needs, such as packages of a container, a job looks at the task. The driver plans
# when its card is there. All rules of jobs that run in a stack's environment are this one, with other parts.
rule look:
    input:
        files.look,
    output:
        "results/cards/{look}.json",
    log:
        "results/logs/<job>.log",
    benchmark:
        "results/benchmarks/<job>.tsv"
    pathvars:
        job="look/{look}",
    conda:
        jobs.look.conda
    envmodules:
        *jobs.modules,
    resources:
        **jobs.look.resources,
    params:
        **jobs.look.params,
    message:
        jobs.message
    shell:
        "{params.before}exec env TORCH_RELAY_JOB_LOG={log:q} {params.program} --attempt {resources.attempt} {params.beside} >> {log:q} 2>&1"
