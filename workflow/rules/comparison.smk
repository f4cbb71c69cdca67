# The comparison of all runs: tables and a report. Where runs have failed for good, `onerror` makes it of the others.


# What `snakemake` without a target makes, and finds missing: all of it, not only the last.
from itertools import chain

OF_RUNS = [
    *(summary_of(run) for run in PLAN.runs),
    *sorted({verdict_of(run) for run in PLAN.runs}),
    *spot_checks_of(PLAN.runs),
]
COMPARED = [
    f"results/{name}"
    for name in (
        "comparison.html",
        "comparison.csv",
        "comparison.parquet",
        "comparison.md",
        "runs.csv",
        "answer.json",
        "recommendation.sbatch",
        "scaling.csv",
        "scaling.md",
        "pictures",
    )
]


@cache
def plan_text():
    return json.dumps(written.content(PLAN), indent=1) + "\n"


def unfinished_comparison():
    """Why the comparison has to be made: a result of its runs is not finished, or it is of others."""
    of_runs = chain(
        ((summary_of(run), unfinished_summary(run.id)) for run in PLAN.runs),
        ((GATE.format(g), unfinished_gate(g)) for g in {*PLAN.gate_of.values()}),
        ((SPOT_CHECK.format(s), unfinished_spot_check(s)) for s in PLAN.spot_checks),
    )
    if missing := next(((file, why) for file, why in of_runs if why), None):
        return f"needs {missing[0]}, which {missing[1]}"
    files = [*map(Path, COMPARED)]
    return finished.comparison(files, RESULTS, json.loads(plan_text()))


def before_comparison(wildcards):
    upstream = {
        *CHAIN_RULES,
        "summary",
        "reference",
        "gate",
        "spot_check",
        "comparison",
    }
    wanted = ["results/plan.json", *OF_RUNS]
    return needed(COMPARED[0], unfinished_comparison(), wanted, upstream)


rule record_plan:
    input:
        lambda wildcards: needed(
            "results/plan.json",
            finished.text(RESULTS / "plan.json", plan_text()),
            [],
        ),
    output:
        "results/plan.json",
    log:
        "results/logs/record_plan.log",
    benchmark:
        "results/benchmarks/record_plan.tsv"
    localrule: True
    message:
        "Writing the plan"
    run:
        Path(output[0]).write_text(plan_text())


rule comparison:
    input:
        before_comparison,
    output:
        report(
            "results/runs.csv",
            caption="../report/runs.rst",
            category="Tables",
            labels={"file": "runs.csv", "what": "runs"},
        ),
        report(
            "results/comparison.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"file": "comparison.csv", "what": "settings"},
        ),
        report(
            "results/comparison.parquet",
            caption="../report/table.rst",
            category="Tables",
            labels={"file": "comparison.parquet", "what": "settings"},
        ),
        report(
            "results/comparison.md",
            caption="../report/table.rst",
            category="Tables",
            labels={"file": "comparison.md", "what": "settings"},
        ),
        report(
            "results/comparison.html",
            caption="../report/page.rst",
            category="Answer",
            labels={"file": "comparison.html", "what": "the whole comparison"},
        ),
        report(
            "results/answer.json",
            caption="../report/answer.rst",
            category="Answer",
            labels={"file": "answer.json", "what": "for programs"},
        ),
        report(
            "results/recommendation.sbatch",
            caption="../report/answer.rst",
            category="Answer",
            labels={"file": "recommendation.sbatch", "what": "for Slurm"},
        ),
        report(
            "results/scaling.csv",
            caption="../report/scaling.rst",
            category="Scaling",
            labels={"file": "scaling.csv", "what": "devices"},
        ),
        report(
            "results/scaling.md",
            caption="../report/scaling.rst",
            category="Scaling",
            labels={"file": "scaling.md", "what": "devices"},
        ),
        report(
            directory("results/pictures"),
            patterns=["{picture}.svg"],
            caption="../report/pictures.rst",
            category="Pictures",
            labels={"picture": "{picture}"},
        ),
    log:
        "results/logs/comparison.log",
    benchmark:
        "results/benchmarks/comparison.tsv"
    localrule: True
    conda:
        no_environment
    message:
        "Comparing {PLAN.strategies}"
    shell:
        job("compare.py") + " --plan results/plan.json --results results > {log:q} 2>&1"


onsuccess:
    if asked_for("comparison"):
        show_comparison()
    if asked_for("selftest"):
        show_selftest()


onerror:
    if asked_for("selftest"):  # of an interrupted call, too
        show_selftest()
    if signals.interrupted():  # the next call goes on, and makes it
        pass
    elif asked_for("comparison"):
        Path("results/plan.json").write_text(plan_text())
        shell(
            program("compare.py")
            + " --plan results/plan.json --results results --partial"
        )
        show_comparison()
    elif asked_for("preflight_job"):
        shell(preflight_page() + " || true")
