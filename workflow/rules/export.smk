# `snakemake export`: the final model of each run as safetensors, equal to its last checkpoint bit for bit. A run that
# is not finished is trained first.
def of_trained(judge, output, run):
    """Why what was made of a trained model is not finished; where its run is trained again, because of that."""
    return unfinished_summary(run.id) or judge(output, RESULTS / "runs" / run.id)


def before_export(wildcards):
    run = RUNS[wildcards.run]
    output = Path(f"results/exported/{run.id}.safetensors")
    why = of_trained(finished.exported, output, run)
    return needed(output, why, [summary_of(run)], {*CHAIN_RULES, "export_model"})


rule export_model:
    input:
        before_export,
    output:
        "results/exported/{run}.safetensors",
    log:
        "results/logs/export/{run}.log",
    benchmark:
        "results/benchmarks/export/{run}.tsv"
    localrule: True
    conda:
        no_environment
    resources:
        measured=AT_ONCE,  # not beside a job that is measured
    message:
        "Exporting the final model of {WORDS:{wildcards.run}}"
    shell:
        job("export.py") + " --run {wildcards.run:q} --output {output:q} > {log:q} 2>&1"


rule export:
    input:
        [f"results/exported/{run.id}.safetensors" for run in PLAN.runs],
    localrule: True
    conda:
        no_environment
