# `snakemake card`: the task in words, with what each finding means for the strategies. It changes nothing. Shown at the
# end of the call, by `show_cards`.
rule card:
    log:
        "results/logs/card.log",
    localrule: True
    message:
        "Looking at the task"
    shell:
        ":"


def show_cards():
    """Print the card of each combination of the task's options."""
    entry.print_anywhere()
    looks = cards.Looks(
        config=CONFIG,
        root=PLAN.root,
        results=Path("results"),
        arithmetic=Arithmetic.here(),
        stack=PLAN.stacks.plain,
    )
    seen = [looks.found(options) for options in settings.task_options(CONFIG)]
    print("\n\n".join(all_in_words(seen)), flush=True)


# Where the login node lacks what a task needs, such as packages of a container, a job looks at the task. The driver plans
# when its card is there.
rule look:
    input:
        lambda wildcards: environment_of(PLAN.looks[wildcards.look]),
    output:
        "results/cards/{look}.json",
    log:
        "results/logs/look/{look}.log",
    benchmark:
        "results/benchmarks/look/{look}.tsv"
    conda:
        conda_of(lambda wildcards: PLAN.looks[wildcards.look])
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(lambda wildcards: PLAN.looks[wildcards.look]),
        measured=AT_ONCE,
    params:
        text=lambda wildcards: specification_text(PLAN.looks[wildcards.look]),
        specification="results/looks/{look}/look.json",
    message:
        "Looking at the task in a job [{wildcards.look}]" + ASKED
    shell:
        "{LOAD:look {wildcards.look}}"
        "mkdir -p results/looks/{wildcards.look:q};"
        "printf '%s\\n' {params.text:q} > {params.specification:q};"
        + job("look.py")
        + " --spec {params.specification:q} --output {output:q}"
        " --attempt {resources.attempt} >> {log:q} 2>&1"
