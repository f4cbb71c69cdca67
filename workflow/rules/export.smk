# `snakemake export`: the final model of each run as safetensors, equal to its last checkpoint bit for bit. A run that
# is not finished is trained first.
rule export_model:
    input:
        files.export,
    output:
        "results/exported/{run}.safetensors",
    log:
        "results/logs/export/{run}.log",
    benchmark:
        "results/benchmarks/export/{run}.tsv"
    localrule: True
    conda:
        driver.no_environment
    resources:
        measured=call.at_once,  # not beside a job that is measured
    params:
        words=jobs.of_run,
    message:
        "Exporting the final model of {params.words}"
    shell:
        driver.job("export")
        + " --run {wildcards.run:q} --output {output:q} > {log:q} 2>&1"


rule export:
    input:
        files.exported,
    localrule: True
