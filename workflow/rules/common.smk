# What the rule files share: paths of scripts, and the specifications that jobs read.
import json
import shlex
from dataclasses import asdict

PYTHON = sys.executable
SCRIPTS = f"{workflow.basedir}/scripts"


wildcard_constraints:
    dataset=r"[^/]+",
    stack=r"[a-z_]+",
    run=r"[^/]+",
    gate=r"[^/]+",
    reference=r"[^/]+",
    end=r"\d+",


RUNS = {run.id: run for run in PLAN.runs}
SPECIFICATIONS = {**RUNS, **PLAN.gates, **PLAN.references}
# Repeats are interleaved in a random order: earlier ones have the higher priority.
PRIORITY = {run.id: len(PLAN.runs) - place for place, run in enumerate(PLAN.runs)}
GATES_FIRST = len(PLAN.runs) + 1


def dataset_of(specification):
    """The manifest of what a run, gate or reference trains on.

    Ancient, as the environment and run.json are: their identity is in the run's fingerprint, so that a newer
    file is no reason to train again.
    """
    return ancient(
        f"results/datasets/{specification.dataset.directory_name}/manifest.json"
    )


def environment_of(specification):
    return ancient(f"results/environments/{specification.stack}.json")


def verdict_of(run):
    return f"results/equivalence/gates/{PLAN.gate_of[run.id]}/verdict.json"


def skipped_message(strategy):
    reasons = [row["reason"] for row in PLAN.skipped if row["strategy"] == strategy]
    skipped = "".join(f"\n  skipped: {reason}" for reason in reasons)
    return f"{strategy}: {len(PLAN.runs_of(strategy))} runs{skipped}".replace(
        "{", "{{"
    ).replace("}", "}}")


# Everything a job has to know, resolved here: jobs read this file, not the config.
rule specification:
    output:
        "results/{kind}/{id}/{name}.json",
    log:
        "results/logs/specification/{kind}/{id}/{name}.log",
    benchmark:
        "results/benchmarks/specification/{kind}/{id}/{name}.tsv"
    wildcard_constraints:
        kind="runs|equivalence/gates|equivalence/references",
        id=r"[^/]+",
        name="run|gate|reference",
    localrule: True
    params:
        text=lambda wildcards: json.dumps(asdict(SPECIFICATIONS[wildcards.id])),
    message:
        "Writing {output}"
    shell:
        "printf '%s\\n' {params.text:q} > {output:q} 2> {log:q}"
