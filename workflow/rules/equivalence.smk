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


class Along:
    """Gates that the processes of a reference, or of another gate, judge after it: those whose shape is the same.

    On this machine alone, where their jobs would wait for each other; on a cluster they run at the same time.
    """

    def __format__(self, id):
        reference = PLAN.reference_of.get(id, id)
        mine = PLAN.gates.get(id) or PLAN.references[id]
        return shlex.join(
            other
            for other in still_to_do("gate")
            if other != id
            and PLAN.reference_of[other] == reference
            and judged_along(mine, PLAN.gates[other])
        )


GATES_ALONG = Along()


rule reference:
    input:
        before_reference,
    output:
        "results/equivalence/references/{reference}/reference.pt",
    log:
        "results/logs/reference/{reference}.log",
    benchmark:
        "results/benchmarks/reference/{reference}.tsv"
    priority: GATES_FIRST + 1
    conda:
        conda_of(lambda wildcards: PLAN.references[wildcards.reference])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.references[wildcards.reference]),
        measured=1,
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
    priority: GATES_FIRST
    conda:
        conda_of(lambda wildcards: PLAN.gates[wildcards.gate])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.gates[wildcards.gate]),
        measured=1,
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
