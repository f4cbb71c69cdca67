# `snakemake libtorch`: the trained model of each task in a C++ program, without Python. One job exports the model, builds
# the program once, and compares outputs and speed with Python's. Outputs that differ are a finding, not a failed job.
LIBTORCH = [f"results/libtorch/{setting}.json" for setting in PLAN.libtorch]


def before_libtorch(wildcards):
    output = Path(f"results/libtorch/{wildcards.setting}.json")
    run = PLAN.libtorch_run(wildcards.setting)
    wanted = [summary_of(run), *waited_for(PLAN.libtorch[wildcards.setting])]
    return needed(
        output,
        of_trained(finished.of_run, output, run),
        wanted,
        {*CHAIN_RULES, "libtorch_job"},
    )


rule libtorch_job:
    input:
        before_libtorch,
    output:
        "results/libtorch/{setting}.json",
    log:
        "results/logs/libtorch/{setting}.log",
    benchmark:
        "results/benchmarks/libtorch/{setting}.tsv"
    conda:
        conda_of(lambda wildcards: PLAN.libtorch[wildcards.setting])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.libtorch[wildcards.setting]),
        measured=AT_ONCE,
    params:
        run=lambda wildcards: PLAN.libtorch_run(wildcards.setting).id,
        text=lambda wildcards: specification_text(PLAN.libtorch[wildcards.setting]),
        specification="results/libtorch/{setting}/libtorch.json",
    message:
        "Running the model of {WORDS:{params.run}} in C++" + ASKED
    shell:
        "{LOAD:libtorch {wildcards.setting}}"
        "mkdir -p results/libtorch/{wildcards.setting:q};"
        " printf '%s\\n' {params.text:q} > {params.specification:q};"
        + job("libtorch.py")
        + " --spec {params.specification:q} --run {params.run:q} --output {output:q}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


# Without any output: it is shown each time. A report that is there gets its section on C++.
rule libtorch:
    input:
        LIBTORCH,
    log:
        "results/logs/libtorch.log",
    localrule: True
    message:
        "Trained models in C++"
    run:
        print(libtorch_page.shown(Path("results")))
        renew_report(log[0])


rule libtorch_example_job:
    input:
        lambda wildcards: environment_of(PLAN.libtorch[wildcards.setting]),
    output:
        "results/libtorch/{setting}/example.json",
    log:
        "results/logs/libtorch/{setting}-example.log",
    conda:
        conda_of(lambda wildcards: PLAN.libtorch[wildcards.setting])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.libtorch[wildcards.setting]),
    params:
        text=lambda wildcards: specification_text(PLAN.libtorch[wildcards.setting]),
        specification="results/libtorch/{setting}/example/libtorch.json",
    message:
        "Building and running the smallest C++ program" + ASKED
    shell:
        "{LOAD:libtorch {wildcards.setting}}"
        "mkdir -p results/libtorch/{wildcards.setting:q}/example;"
        " printf '%s\\n' {params.text:q} > {params.specification:q};"
        + job("libtorch.py")
        + " --spec {params.specification:q} --output {output:q}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


# `snakemake libtorch_example`: the smallest C++ program, in the first task's job. Nothing is trained for it.
rule libtorch_example:
    input:
        [f"results/libtorch/{setting}/example.json" for setting in [*PLAN.libtorch][:1]],
    log:
        "results/logs/libtorch_example.log",
    localrule: True
    message:
        "The smallest C++ program"
    run:
        for path in map(Path, input):
            told = read_json(path)
            print(told.get("said") or f"skipped: {told['reason']}")
            path.unlink()  # the next call tries it again
