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
            if not (folder / chain_file.CHAIN).exists()
        }

    def __format__(self, id):
        return shlex.quote(self.begun.get(id) or "")


LOST = Lost()


# A new start of a run: what was trained under an older one is never gone on with. `--forcerun start`, or a forced
# rerun of everything, trains again from step 0; a retry, or a rerun of what is incomplete, goes on. The old summary goes
# too, so that a start that fails is not taken for the one before.
rule start:
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
        "rm -f results/runs/{wildcards.run:q}/summary.json;"
        " begun={LOST:{wildcards.run}};"
        ' printf \'{{"generation": "%s"}}\\n\' "${{begun:-$(date +%s%N)-$$}}" > {output:q} 2> {log:q}'


rule segment:
    input:
        previous=previous_state,
        first=lambda wildcards: waited_for(
            RUNS[wildcards.run],
            f"results/runs/{wildcards.run}/step-{wildcards.end}.json",
        ),
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
        measured=1,
    params:
        first=lambda wildcards: PLAN.previous_end(
            RUNS[wildcards.run], int(wildcards.end)
        ),
    message:
        "Training {WORDS:{wildcards.run}} from step {params.first} to {wildcards.end}"
        + ASKED
    shell:
        "{LOAD:run {wildcards.run}}"
        + job("train.py")
        + " --run {wildcards.run:q} --first {params.first} --last {wildcards.end}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


rule summary:
    input:
        state=lambda wildcards: (
            f"results/runs/{wildcards.run}/step-{RUNS[wildcards.run].length.total_steps}.json"
        ),
    output:
        "results/runs/{run}/summary.json",
    log:
        "results/logs/summary/{run}.log",
    benchmark:
        "results/benchmarks/summary/{run}.tsv"
    localrule: True
    conda:
        no_environment
    resources:
        measured=1,  # not beside a job that is measured
    params:
        segments=lambda wildcards: len(PLAN.segments(RUNS[wildcards.run])),
        # Not in the run's identity: another warm-up is another reading of the same records.
        warmup_steps=CONFIG.warmup_steps,
    message:
        "Summarising {WORDS:{wildcards.run}}"
    shell:
        job("summarise.py")
        + " --run {wildcards.run:q} --segments {params.segments} > {log:q} 2>&1"
