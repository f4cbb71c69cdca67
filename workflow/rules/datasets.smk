# Login node: download, or take from where the user has it, check, and prepare. Jobs never touch the network.
DATASETS = {
    each.dataset.directory_name: each
    for each in (*PLAN.runs, *PLAN.gates.values())
    if each.dataset.name
}


def before_dataset(wildcards):
    file = Path(f"results/datasets/{wildcards.dataset}/manifest.json")
    spec = DATASETS[wildcards.dataset].dataset
    return needed(file, finished.dataset(file.parent, spec), [])


rule dataset:
    input:
        before_dataset,
    # Not removed before the job: a folder without its manifest is taken for somebody else's. Forced, the job checks every byte.
    output:
        update("results/datasets/{dataset}/manifest.json"),
    log:
        "results/logs/dataset/{dataset}.log",
    benchmark:
        "results/benchmarks/dataset/{dataset}.tsv"
    localrule: True
    conda:
        no_environment
    params:
        text=lambda wildcards: json.dumps(
            {
                "task": asdict(DATASETS[wildcards.dataset].task),
                "dataset": asdict(DATASETS[wildcards.dataset].dataset),
            }
        ),
        # A task's `prepare` may need packages of the user's.
        environment=lambda wildcards: json.dumps(
            [
                asked_of_stack(PLAN.stacks.plain),
                str(locks.lock_of(Path(workflow.basedir), PLAN.stacks.plain)),
            ]
        ),
    message:
        "Preparing the data {wildcards.dataset}"
    shell:
        "printf '%s' {params.text:q} | "
        + told("dataset.py", *dataset_source())
        + " --environment {params.environment:q} --spec /dev/stdin --output results/datasets/{wildcards.dataset:q} 2>&1 | tee {log:q}"


# `snakemake data`: the task's data only, from which the driver learns what it has to know to plan.
rule data:
    input:
        [f"results/datasets/{dataset}/manifest.json" for dataset in DATASETS],
    localrule: True
    conda:
        no_environment
