# `snakemake export`: the final model of each run as safetensors, equal to its last checkpoint bit for bit. A run that
# is not finished is trained first.
rule export_model:
    input:
        "results/runs/{run}/summary.json",
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
        measured=1,  # not beside a job that is measured
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
