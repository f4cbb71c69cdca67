# A run is a chain of planned segments, each a job that ends at a fixed step. Its checkpoints lie in
# results/checkpoints, unknown to Snakemake, which would delete them when a job fails; declared is one small state
# file for each segment, written last.


# A new start of a run: what was trained under an older one is never gone on with. `--forcerun start`, or a forced
# rerun of everything, trains again from step 0; a retry, or a rerun of what is incomplete, goes on.
rule start:
    input:
        files.start,
    output:
        "results/runs/{run}/start.json",
    log:
        "results/logs/start/{run}.log",
    benchmark:
        "results/benchmarks/start/{run}.tsv"
    priority: jobs.order.of_start
    localrule: True
    conda:
        driver.no_environment
    resources:
        **call.temporary,
    params:
        command=driver.start,
        words=jobs.of_run,
    message:
        "Starting {params.words}"
    shell:
        "{params.command} > {output:q} 2> {log:q}"


use rule look as segment with:
    input:
        files.segment,
    output:
        "results/runs/{run}/step-{end}.json",
    pathvars:
        job="segment/{run}/step-{end}",
    priority: jobs.order.of_segment
    conda:
        jobs.segment.conda
    resources:
        **jobs.segment.resources,
    params:
        **jobs.segment.params,
        first=jobs.first_step,


# `snakemake chain`: one training alone, as jobs until it has ended: no proofs beside its reference, no comparison.
rule chain:
    input:
        files.of_one_repeat,
    localrule: True


rule summary:
    input:
        files.summary,
    # Kept where no new one can be made, because the records are deleted.
    output:
        update("results/runs/{run}/summary.json"),
    log:
        "results/logs/summary/{run}.log",
    benchmark:
        "results/benchmarks/summary/{run}.tsv"
    # Before spot checks, so that one process checks all that has ended.
    priority: 1
    localrule: True
    conda:
        driver.no_environment
    resources:
        **call.temporary,
        measured=call.at_once,  # not beside a job that is measured
    params:
        words=jobs.of_run,
    message:
        "Summarising {params.words}"
    shell:
        driver.job("summarise") + " --run {wildcards.run:q} > {log:q} 2>&1"
