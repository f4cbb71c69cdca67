# `snakemake plan`: the jobs, and the hours at most to be spent, before anything is queued. Where jobs are given in
# minutes, it first measures what a step takes, and writes that down in results/speeds.json.
from relay import plan_table, speed

UNMEASURED = {run.setting: run for run in PLAN.unmeasured}


rule speed:
    input:
        dataset=lambda wildcards: dataset_of(UNMEASURED[wildcards.setting]),
        environment=lambda wildcards: environment_of(UNMEASURED[wildcards.setting]),
    output:
        "results/speeds/{setting}.json",
    log:
        "results/logs/speed/{setting}.log",
    benchmark:
        "results/benchmarks/speed/{setting}.tsv"
    resources:
        measured=1,
        runtime=CONFIG.runtime_minutes,
    params:
        text=lambda wildcards: json.dumps(asdict(UNMEASURED[wildcards.setting])),
    message:
        "Measuring what a step of {wildcards.setting} takes"
    shell:
        "printf '%s' {params.text:q} | {PYTHON:q} {SCRIPTS:q}/measure_speed.py --spec /dev/stdin"
        " --output {output:q} > {log:q} 2>&1"


rule plan:
    input:
        [f"results/speeds/{setting}.json" for setting in UNMEASURED],
    log:
        "results/logs/plan.log",
    benchmark:
        "results/benchmarks/plan.tsv"
    localrule: True
    message:
        "Planning"
    run:
        speed.remember([Path(path) for path in input], planning.SPEEDS)
        print(plan_table.render(planning.plan(CONFIG, root=Path(workflow.basedir))))
