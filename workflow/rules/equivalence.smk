# Does a strategy compute the training that one process computes? A reference for each task and proof batch, and a
# gate for each distinct task, strategy, shape and precision. A failed gate is a verdict, not a failed job.
REFERENCE = "results/equivalence/references/{}/reference.pt"
GATE = "results/equivalence/gates/{}/verdict.json"


def before_reference(wildcards):
    file = REFERENCE.format(wildcards.reference)
    wanted = waited_for(PLAN.references[wildcards.reference])
    return needed(file, finished.reference(Path(file)), wanted, {"reference"})


@cache
def unfinished_gate(gate):
    return finished.record(Path(GATE.format(gate)), gate=gate)


def before_gate(wildcards):
    gate = wildcards.gate
    wanted = [REFERENCE.format(PLAN.reference_of[gate]), *waited_for(PLAN.gates[gate])]
    return needed(
        GATE.format(gate), unfinished_gate(gate), wanted, {"reference", "gate"}
    )


# What tells most is proven first; outside of a self-test, all gates are alike.
FOREMOST = [gate.id for gate in (selftest.foremost(PLAN) if SELFTEST else [])]
FOR_FOREMOST = {PLAN.reference_of[gate] for gate in FOREMOST}
# On this machine alone, where jobs wait for each other; on a cluster they run at the same time.
GROUPS = (
    {}
    if SITE
    else in_groups(
        [PLAN.gates[gate] for gate in dict.fromkeys([*FOREMOST, *PLAN.gates])],
        lambda gate: PLAN.references[PLAN.reference_of[gate.id]],
        AT_ONCE,
    )
)
TURNS = {
    group: f"turn_{place}" for place, group in enumerate(dict.fromkeys(GROUPS.values()))
}
if AT_ONCE > 1:
    for turn in TURNS.values():
        workflow.register_resource(turn, 1)


class Along:
    """Gates that the processes of a reference, or of another gate, judge after it: those of its group, with references."""

    def __format__(self, id):
        mine = GROUPS.get(id, id)
        to_do = {*still_to_do("gate")} - {id}
        return shlex.join(
            f"{gate}:{PLAN.reference_of[gate]}"
            for gate, group in GROUPS.items()
            if group == mine and gate in to_do
        )


GATES_ALONG = Along()


def turns():
    """The resources by which the gates of a group wait for each other where others run side by side."""

    def takes(group):
        return lambda wildcards: int(GROUPS.get(wildcards.gate) == group)

    return {turn: takes(group) for group, turn in TURNS.items()} if AT_ONCE > 1 else {}


rule reference:
    input:
        before_reference,
    output:
        "results/equivalence/references/{reference}/reference.pt",
    log:
        "results/logs/reference/{reference}.log",
    benchmark:
        "results/benchmarks/reference/{reference}.tsv"
    priority: lambda wildcards: GATES_FIRST + 1 + 2 * (wildcards.reference in FOR_FOREMOST)
    conda:
        conda_of(lambda wildcards: PLAN.references[wildcards.reference])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.references[wildcards.reference]),
        measured=beside_others(lambda wildcards: PLAN.references[wildcards.reference]),
    message:
        "Training the {WORDS:{wildcards.reference}}" + ASKED
    shell:
        "{LOAD:reference {wildcards.reference}}"
        + job("reference.py")
        + " --spec results/equivalence/references/{wildcards.reference:q}/reference.json --output {output:q}"
        " --attempt {resources.attempt} --beside {GATES_ALONG:{wildcards.reference}} >> {log:q} 2>&1"


rule gate:
    input:
        before_gate,
    output:
        "results/equivalence/gates/{gate}/verdict.json",
    log:
        "results/logs/gate/{gate}.log",
    benchmark:
        "results/benchmarks/gate/{gate}.tsv"
    priority: lambda wildcards: GATES_FIRST + 2 * (wildcards.gate in FOREMOST)
    conda:
        conda_of(lambda wildcards: PLAN.gates[wildcards.gate])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.gates[wildcards.gate]),
        **turns(),
        measured=beside_others(lambda wildcards: PLAN.gates[wildcards.gate]),
    params:
        reference=lambda wildcards: REFERENCE.format(PLAN.reference_of[wildcards.gate]),
    message:
        "Gate: does {WORDS:{wildcards.gate}} compute the same training as its reference?"
        + ASKED
    shell:
        "{LOAD:gate {wildcards.gate}}"
        + job("gate.py")
        + " --spec results/equivalence/gates/{wildcards.gate:q}/gate.json --reference {params.reference:q}"
        " --output {output:q} --attempt {resources.attempt} --beside {GATES_ALONG:{wildcards.gate}} >> {log:q} 2>&1"


# What stands for all scripts that are measured as they stand.
rule script_verdict:
    output:
        GATE.format(NOT_PROVEN),
    localrule: True
    conda:
        no_environment
    message:
        "Scripts are measured as they stand, and not proven"
    run:
        write_json(Path(output[0]), of_scripts(NOT_PROVEN))


ruleorder: script_verdict > gate


# `snakemake equivalence`: all verdicts, without training a run.
rule equivalence:
    input:
        [GATE.format(gate) for gate in PLAN.gates],
    localrule: True
    conda:
        no_environment
