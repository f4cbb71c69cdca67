# Did the runs themselves compute what one process computes? The job starts when all runs of a setting have ended. One
# plain process loads the states that they kept, and computes a few of their steps again. A failed spot check is a
# verdict, not a failed job.
SPOT_CHECK = "results/equivalence/spot_checks/{}/verdict.json"


@cache
def unfinished_spot_check(setting):
    runs = [Places(RESULTS, run.id) for run in PLAN.spot_check_runs(setting)]
    return finished.spot_check(Path(SPOT_CHECK.format(setting)), runs)


def before_spot_check(wildcards):
    setting = wildcards.setting
    wanted = [summary_of(run) for run in PLAN.spot_check_runs(setting)]
    wanted += waited_for(PLAN.spot_checks[setting])
    why = unfinished_spot_check(setting)
    return needed(
        SPOT_CHECK.format(setting), why, wanted, {*CHAIN_RULES, "summary", "spot_check"}
    )


class RunsAlong:
    """Further runs that a spot check's process checks: those of settings whose runs have ended, too. As for gates."""

    def __format__(self, setting):
        mine = PLAN.spot_checks[setting]
        return shlex.join(
            run.id
            for other in still_to_do("spot_check", ready=True)
            if other != setting and checked_along(mine, PLAN.spot_checks[other])
            for run in PLAN.spot_check_runs(other)
        )


RUNS_ALONG = RunsAlong()


rule spot_check:
    input:
        before_spot_check,
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
        measured=AT_ONCE,
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
        " --output {output:q} --attempt {resources.attempt} --beside {RUNS_ALONG:{wildcards.setting}} >> {log:q} 2>&1"
