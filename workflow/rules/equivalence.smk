# Does a strategy compute the training that one process computes? A reference for each task and global batch, and a
# gate for each distinct task, strategy, shape and precision. A failed gate is a verdict, not a failed job.
rule reference:
    input:
        # Ancient: all that bears on the result is in the name.
        specification=ancient(
            "results/equivalence/references/{reference}/reference.json"
        ),
        dataset=lambda wildcards: dataset_of(PLAN.references[wildcards.reference]),
        environment=lambda wildcards: environment_of(
            PLAN.references[wildcards.reference]
        ),
        preflight=lambda wildcards: preflight_of(PLAN.references[wildcards.reference]),
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
        "Training the reference {wildcards.reference}"
    shell:
        program("reference.py") + " --spec {input.specification:q} --output {output:q}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


rule gate:
    input:
        specification=ancient("results/equivalence/gates/{gate}/gate.json"),
        reference=lambda wildcards: (
            f"results/equivalence/references/{PLAN.reference_of[wildcards.gate]}/reference.pt"
        ),
        dataset=lambda wildcards: dataset_of(PLAN.gates[wildcards.gate]),
        environment=lambda wildcards: environment_of(PLAN.gates[wildcards.gate]),
        preflight=lambda wildcards: preflight_of(PLAN.gates[wildcards.gate]),
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
    message:
        "Gate: does {wildcards.gate} compute the same training as its reference?"
    shell:
        program("gate.py")
        + " --spec {input.specification:q} --reference {input.reference:q}"
        " --output {output:q} --attempt {resources.attempt} >> {log:q} 2>&1"


# `snakemake equivalence`: all verdicts, without training a run.
rule equivalence:
    input:
        [f"results/equivalence/gates/{gate}/verdict.json" for gate in PLAN.gates],
    localrule: True
    conda:
        no_environment
