# What is really there: on a cluster, a short job for each shape and stack looks at its nodes before anything trains on
# them. A fault that it finds fails it, with the remedy; what depends on it is then not submitted.
def before_preflight(wildcards):
    looked = PLAN.preflights[wildcards.preflight]
    facts = Path(f"results/preflight/{looked.id}/facts.json")
    # After another module, or another interface, the nodes are looked at anew.
    asked = facts.with_name("preflight.json")
    why = finished.record(facts) or finished.text(
        asked, specification_text(looked) + "\n"
    )
    return needed(
        facts, why, [environment_of(looked)], {"environment", "preflight_job"}
    )


rule preflight_job:
    input:
        before_preflight,
    output:
        "results/preflight/{preflight}/facts.json",
    log:
        "results/logs/preflight/{preflight}.log",
    benchmark:
        "results/benchmarks/preflight/{preflight}.tsv"
    priority: GATES_FIRST + 4
    conda:
        conda_of(lambda wildcards: PLAN.preflights[wildcards.preflight])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.preflights[wildcards.preflight]),
        measured=AT_ONCE,
    params:
        text=lambda wildcards: specification_text(PLAN.preflights[wildcards.preflight]),
        specification="results/preflight/{preflight}/preflight.json",
    message:
        "Preflight: is all right on the nodes for {WORDS:{wildcards.preflight}}?"
        + ASKED
    shell:
        "{LOAD:preflight {wildcards.preflight}}"
        "printf '%s\\n' {params.text:q} > {params.specification:q};"
        + job("preflight.py")
        + " --spec {params.specification:q} --output {output:q}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


# `snakemake preflight`: one page about PyTorch on this cluster, and nothing else.
rule preflight:
    input:
        [f"results/preflight/{preflight}/facts.json" for preflight in PLAN.preflights],
    log:
        "results/logs/preflight.log",
    localrule: True
    conda:
        no_environment
    message:
        "Preflight"
    shell:
        preflight_page() + " 2> {log:q}"
