# A run is a chain of planned segments, each a job that ends at a fixed step. Its checkpoints lie in
# results/checkpoints, unknown to Snakemake, which would delete them when a job fails; declared is one small state
# file for each segment, written last.


class Lost:
    """For the rule's command: the start of a run whose training has begun, where the file that says so is lost.

    It is written again, so that the run goes on. Looked at before Snakemake removes the output of a forced rerun.
    """

    def __init__(self):
        runs = PLAN.runs if workflow.is_main_process else []
        folders = {run.id: Path("results/runs", run.id) for run in runs}
        self.begun = {
            id: chain_file.begun(folder)
            for id, folder in folders.items()
            if chain_file.declared_there(folder) is None
        }

    def __format__(self, id):
        return shlex.quote(self.begun.get(id) or "")


LOST = Lost()


class Aside:
    """For the rule's command: what puts aside what an older start of the run has trained, where there is such a thing."""

    def __format__(self, id):
        if LOST.begun.get(id) or not replaced.trained(Places(RESULTS, id)):
            return ""
        return program("start.py", "--run", id) + " >&2;"


ASIDE = Aside()


# A new start of a run: what was trained under an older one is never gone on with. `--forcerun start`, or a forced
# rerun of everything, trains again from step 0; a retry, or a rerun of what is incomplete, goes on.
rule start:
    input:
        lambda wildcards: needed(
            f"results/runs/{wildcards.run}/chain.json",
            finished.start(RESULTS / "runs" / wildcards.run),
            [],
        ),
    output:
        "results/runs/{run}/chain.json",
    log:
        "results/logs/start/{run}.log",
    benchmark:
        "results/benchmarks/start/{run}.tsv"
    # All of them before the first segment, so that the segments are ready together and go in their order.
    priority: lambda wildcards: STARTS_FIRST + PRIORITY[wildcards.run]
    localrule: True
    conda:
        no_environment
    message:
        "Starting {WORDS:{wildcards.run}}"
    shell:
        "{ASIDE:{wildcards.run}}"
        " begun={LOST:{wildcards.run}};"
        ' printf \'{{"generation": "%s", "run": "%s"}}\\n\' "${{begun:-$(date +%s%N)-$$}}" {wildcards.run:q}'
        " > {output:q} 2> {log:q}"


def before_segment(wildcards):
    """What a segment goes on from. The first one waits for the reference: without one, nothing can prove the run."""
    run, end = RUNS[wildcards.run], int(wildcards.end)
    places, before = Places(RESULTS, run.id), PLAN.previous_end(run, end)
    if before:
        wanted = [places.state(before)]
    else:
        gate = PLAN.gate(run)
        proof = (
            [REFERENCE.format(PLAN.reference_of[gate])]
            if gate in PLAN.gates and unfinished_gate(gate)
            else []
        )
        wanted = [places.run / "chain.json", *proof, *waited_for(run)]
    state = places.state(end)
    return needed(state, finished.segment(places, end), wanted, CHAIN_RULES)


def summary_of(run):
    return f"results/runs/{run.id}/summary.json"


@cache
def unfinished_summary(run):
    return finished.summary(Places(RESULTS, run), CONFIG.warmup_steps)


def before_summary(wildcards):
    run = RUNS[wildcards.run]
    wanted = [Places(RESULTS, run.id).state(run.length.total_steps)]
    return needed(
        summary_of(run), unfinished_summary(run.id), wanted, {*CHAIN_RULES, "summary"}
    )


class Doing:
    """What a segment's job does, in words: a script's run has no steps that the plan knows."""

    def __format__(self, asked):
        run, first, end = asked.split()
        if RUNS[run].strategy.script:
            return f"Running {WORDS:{run}}"
        return f"Training {WORDS:{run}} from step {first} to {end}"


DOING = Doing()


rule segment:
    input:
        before_segment,
    output:
        "results/runs/{run}/step-{end}.json",
    log:
        "results/logs/segment/{run}/step-{end}.log",
    benchmark:
        "results/benchmarks/segment/{run}/step-{end}.tsv"
    priority: lambda wildcards: PRIORITY[wildcards.run]
    conda:
        conda_of(lambda wildcards: RUNS[wildcards.run])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: RUNS[wildcards.run]),
        # The local profile has one of these: two measured jobs at once would time each other.
        measured=AT_ONCE,
    params:
        first=lambda wildcards: PLAN.previous_end(
            RUNS[wildcards.run], int(wildcards.end)
        ),
    message:
        "{DOING:{wildcards.run} {params.first} {wildcards.end}}" + ASKED
    shell:
        "{LOAD:run {wildcards.run}}"
        + job("train.py")
        + " --run {wildcards.run:q} --first {params.first} --last {wildcards.end}"
        " --attempt {resources.attempt}"
        + ("" if SITE else f" --minutes {CONFIG.runtime_minutes}")
        + " >> {log:q} 2>&1"


# `snakemake chain`: one training alone, as jobs until it has ended: no proofs beside its reference, no comparison.
rule chain:
    input:
        [summary_of(run) for run in PLAN.runs if run.repeat == 0],
    localrule: True
    conda:
        no_environment


rule summary:
    input:
        before_summary,
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
        no_environment
    resources:
        measured=AT_ONCE,  # not beside a job that is measured
    message:
        "Summarising {WORDS:{wildcards.run}}"
    shell:
        job("summarise.py") + " --run {wildcards.run:q} > {log:q} 2>&1"
