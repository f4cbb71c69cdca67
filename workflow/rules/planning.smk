# `snakemake plan`: the jobs, and the hours at most to be spent, before anything is queued. Where jobs are given in
# minutes, it first measures what a step takes, and writes that down in results/speeds.json.

UNMEASURED = {run.setting_id: run for run in PLAN.unmeasured}
LOAD.known["speed"] = UNMEASURED


def before_speed(wildcards):
    output = f"results/speeds/{wildcards.setting}.json"
    wanted = waited_for(UNMEASURED[wildcards.setting])
    return needed(output, finished.record(Path(output)), wanted, {"speed"})


rule speed:
    input:
        before_speed,
    output:
        "results/speeds/{setting}.json",
    log:
        "results/logs/speed/{setting}.log",
    benchmark:
        "results/benchmarks/speed/{setting}.tsv"
    conda:
        conda_of(lambda wildcards: UNMEASURED[wildcards.setting])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: UNMEASURED[wildcards.setting]),
        measured=AT_ONCE,
    params:
        text=lambda wildcards: specification_text(UNMEASURED[wildcards.setting]),
    message:
        "Measuring what a step of {WORDS:{wildcards.setting}} takes" + ASKED
    shell:
        "{LOAD:speed {wildcards.setting}}"
        + job("measure_speed.py")
        + " --spec /dev/stdin"
        " --output {output:q} --attempt {resources.attempt} <<< {params.text:q} >> {log:q} 2>&1"


# Without any output, not even a benchmark's: it is shown each time, at the end of the call, by `show_plan`.
rule plan:
    input:
        [f"results/speeds/{setting}.json" for setting in UNMEASURED],
    log:
        "results/logs/plan.log",
    localrule: True
    message:
        "Planning"
    shell:
        ":"
