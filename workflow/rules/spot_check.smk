# Did the runs themselves compute what one process computes? The job starts when all runs of a setting have ended. One
# plain process loads the states that they kept, and computes a few of their steps again. A failed spot check is a
# verdict, not a failed job.
rule spot_check:
    input:
        summaries=lambda wildcards: [
            f"results/runs/{run.id}/summary.json"
            for run in PLAN.spot_check_runs(wildcards.setting)
        ],
        first=lambda wildcards: waited_for(
            PLAN.spot_checks[wildcards.setting],
            f"results/equivalence/spot_checks/{wildcards.setting}/verdict.json",
        ),
    output:
        "results/equivalence/spot_checks/{setting}/verdict.json",
    log:
        "results/logs/spot_check/{setting}.log",
    benchmark:
        "results/benchmarks/spot_check/{setting}.tsv"
    conda:
        conda_of(lambda wildcards: PLAN.spot_checks[wildcards.setting])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.spot_checks[wildcards.setting]),
        measured=1,
    params:
        runs=lambda wildcards: [
            run.id for run in PLAN.spot_check_runs(wildcards.setting)
        ],
    message:
        "Spot check: did {WORDS:{wildcards.setting}} compute what one process computes?"
        + ASKED
    shell:
        "{LOAD:spot_check {wildcards.setting}}"
        + job("spot_check.py")
        + " --spec results/equivalence/spot_checks/{wildcards.setting:q}/spot_check.json --runs {params.runs:q}"
        " --output {output:q} --attempt {resources.attempt} >> {log:q} 2>&1"
