# Login node: download, or take from where the user has it, check, and prepare. Jobs never touch the network.
rule dataset:
    input:
        files.dataset,
    # Not removed before the job: a folder without its manifest is taken for somebody else's. Forced, the job checks every byte.
    output:
        update("results/datasets/{dataset}/manifest.json"),
    log:
        "results/logs/dataset/{dataset}.log",
    benchmark:
        "results/benchmarks/dataset/{dataset}.tsv"
    localrule: True
    conda:
        driver.no_environment
    params:
        text=driver.dataset_text,
        environment=driver.task_environment,
    message:
        "Preparing the data {wildcards.dataset}"
    shell:
        "printf '%s' {params.text:q} | "
        + driver.prepare_data
        + " --environment {params.environment:q} --spec /dev/stdin --output results/datasets/{wildcards.dataset:q} 2>&1 | tee {log:q}"


# `snakemake data`: the task's data only, from which the driver learns what it has to know to plan.
rule data:
    input:
        files.of_data,
    localrule: True
