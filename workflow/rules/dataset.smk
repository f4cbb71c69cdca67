# Login node: download, or take from where the user has it, check, and prepare. Jobs never touch the network.
DATASETS = {run.dataset.directory_name: run.dataset for run in PLAN.runs}

# Quoted here, once. No params: another source of the same data is no reason to prepare it again.
DATASET_SOURCE = shlex.join(
    [
        *(
            ["--root", str(Path(CONFIG.dataset_root).expanduser())]
            if CONFIG.dataset_root
            else []
        ),
        *(["--mirror", CONFIG.dataset_mirror] if CONFIG.dataset_mirror else []),
    ]
)


rule dataset:
    output:
        "results/datasets/{dataset}/manifest.json",
    log:
        "results/logs/dataset/{dataset}.log",
    benchmark:
        "results/benchmarks/dataset/{dataset}.tsv"
    localrule: True
    params:
        text=lambda wildcards: json.dumps(asdict(DATASETS[wildcards.dataset])),
    message:
        "Preparing the dataset {wildcards.dataset}"
    shell:
        "printf '%s' {params.text:q} | {PYTHON:q} {SCRIPTS:q}/dataset.py --spec /dev/stdin"
        " --output results/datasets/{wildcards.dataset:q} {DATASET_SOURCE} 2>&1 | tee {log:q}"
