# `snakemake probe`: the largest batch per device that fits, for each setting; the config with what was found is
# results/probed.yaml. `snakemake largest_model`: the deepest network that fits, beside what the formula says.
from relay.planning import largest_models, probed

PROBES = probed.probes(PLAN)
SEARCHES = largest_models.searches(PLAN)
PROBED = "results/probed.yaml"
LOAD.known["probe"] = {name: planned.probe for name, planned in PROBES.items()}
LOAD.known["largest_model"] = {
    name: planned.probe for name, planned in SEARCHES.items()
}


def probe_answers():
    return {
        name: json.loads(Path(f"results/probe/{name}.json").read_text())
        for name in PROBES
    }


def limits_of(planned):
    limits = planned.limits
    found = ["--unit", limits.unit, "--first", limits.first, "--most", limits.most]
    found += ["--minutes", limits.minutes, "--memory-fraction", limits.memory_fraction]
    if limits.node_memory_mb:
        found += ["--memory-mb", limits.node_memory_mb]
    return " ".join(map(str, found))


def before_search(folder, planned):
    output = f"results/{folder}/{planned.probe.id}.json"
    why = finished.record(Path(output), limits=asdict(planned.limits))
    return needed(
        output, why, waited_for(planned.probe), {"probe_job", "largest_model_job"}
    )


rule probe_job:
    input:
        lambda wildcards: before_search("probe", PROBES[wildcards.setting]),
    output:
        "results/probe/{setting}.json",
    log:
        "results/logs/probe/{setting}.log",
    benchmark:
        "results/benchmarks/probe/{setting}.tsv"
    conda:
        conda_of(lambda wildcards: PROBES[wildcards.setting].probe)
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PROBES[wildcards.setting].probe),
        measured=AT_ONCE,
    params:
        limits=lambda wildcards: limits_of(PROBES[wildcards.setting]),
        text=lambda wildcards: specification_text(PROBES[wildcards.setting].probe),
        specification="results/probe/{setting}.run.json",
    message:
        "Probing the largest batch of {WORDS:{wildcards.setting}}" + ASKED
    shell:
        "{LOAD:probe {wildcards.setting}}"
        "printf '%s\\n' {params.text:q} > {params.specification:q};"
        + job("probe.py")
        + " --spec {params.specification:q} --output {output:q} {params.limits}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


def before_probed(wildcards):
    answers = [f"results/probe/{name}.json" for name in PROBES]
    why = next(filter(None, (finished.record(Path(answer)) for answer in answers)), "")
    if not why:
        text = probed.config_text(PLAN, probe_answers(), PROBED)
        why = finished.text(Path(PROBED), text)
    return needed(PROBED, why, answers, {"probe_job"})


rule probed:
    input:
        before_probed,
    output:
        PROBED,
    log:
        "results/logs/probed.log",
    benchmark:
        "results/benchmarks/probed.tsv"
    localrule: True
    message:
        "Writing {output}"
    run:
        Path(output[0]).write_text(
            probed.config_text(PLAN, probe_answers(), PROBED), encoding="utf-8"
        )


# Without any output: it is shown each time.
rule probe:
    input:
        PROBED,
    log:
        "results/logs/probe.log",
    localrule: True
    message:
        "The largest batches that fit"
    run:
        print(probed.shown(PLAN, probe_answers(), PROBED))


rule largest_model_job:
    input:
        lambda wildcards: before_search("largest_model", SEARCHES[wildcards.setting]),
    output:
        "results/largest_model/{setting}.json",
    log:
        "results/logs/largest_model/{setting}.log",
    benchmark:
        "results/benchmarks/largest_model/{setting}.tsv"
    conda:
        conda_of(lambda wildcards: SEARCHES[wildcards.setting].probe)
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: SEARCHES[wildcards.setting].probe),
        measured=AT_ONCE,
    params:
        limits=lambda wildcards: limits_of(SEARCHES[wildcards.setting]),
        text=lambda wildcards: specification_text(SEARCHES[wildcards.setting].probe),
        specification="results/largest_model/{setting}.run.json",
    message:
        "Searching for the largest model of {WORDS:{wildcards.setting}}" + ASKED
    shell:
        "{LOAD:largest_model {wildcards.setting}}"
        "printf '%s\\n' {params.text:q} > {params.specification:q};"
        + job("largest_model.py")
        + " --spec {params.specification:q} --output {output:q} {params.limits}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"


# Without any output: it is shown each time. A report that is there gets its section on the largest models.
rule largest_model:
    input:
        [f"results/largest_model/{name}.json" for name in SEARCHES],
    log:
        "results/logs/largest_model.log",
    localrule: True
    message:
        "The largest models that fit"
    run:
        answers = {
            name: json.loads(Path(f"results/largest_model/{name}.json").read_text())
            for name in SEARCHES
        }
        print(largest_models.shown(PLAN, answers))
        renew_report(log[0])
