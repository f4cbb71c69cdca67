# Login node: download, or take from where the user has it, check, and prepare. Jobs never touch the network.
DATASETS = {
    each.dataset.directory_name: each.dataset
    for each in (*PLAN.runs, *PLAN.gates.values())
}


def before_dataset(wildcards):
    file = Path(f"results/datasets/{wildcards.dataset}/manifest.json")
    spec = DATASETS[wildcards.dataset]
    return needed(file, finished.dataset(file.parent, spec), [])


rule dataset:
    input:
        before_dataset,
    output:
        "results/datasets/{dataset}/manifest.json",
    log:
        "results/logs/dataset/{dataset}.log",
    benchmark:
        "results/benchmarks/dataset/{dataset}.tsv"
    localrule: True
    conda:
        no_environment
    params:
        text=lambda wildcards: json.dumps(asdict(DATASETS[wildcards.dataset])),
    message:
        "Preparing the dataset {wildcards.dataset}"
    shell:
        "printf '%s' {params.text:q} | "
        + told("dataset.py", *dataset_source())
        + " --spec /dev/stdin --output results/datasets/{wildcards.dataset:q} 2>&1 | tee {log:q}"
