# The comparison of all runs: tables and a report. Where runs have failed for good, `onerror` makes it of the others.
from hashlib import sha256


rule record_plan:
    output:
        "results/plan.json",
    log:
        "results/logs/record_plan.log",
    benchmark:
        "results/benchmarks/record_plan.tsv"
    localrule: True
    params:
        digest=lambda wildcards: sha256(json.dumps(PLAN.to_json()).encode()).hexdigest(),
    message:
        "Writing the plan"
    run:
        Path(output[0]).write_text(json.dumps(PLAN.to_json(), indent=1) + "\n")


rule comparison:
    input:
        plan="results/plan.json",
        summaries=[f"results/runs/{run.id}/summary.json" for run in PLAN.runs],
        verdicts=sorted({verdict_of(run) for run in PLAN.runs}),
        spot_checks=spot_checks_of(PLAN.runs),
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
        job("compare.py") + " --plan {input.plan:q} --results results > {log:q} 2>&1"


onsuccess:
    if asked_for("comparison"):
        show_comparison()


onerror:
    if signals.interrupted():  # the next call goes on, and makes it
        pass
    elif asked_for("comparison"):
        Path("results/plan.json").write_text(
            json.dumps(PLAN.to_json(), indent=1) + "\n"
        )
        shell(
            program("compare.py")
            + " --plan results/plan.json --results results --partial"
        )
        # Newer than the report of what is there: the next call has to make it again, and what is missing before it.
        Path("results/plan.json").touch()
        show_comparison()
    elif asked_for("preflight_job"):
        shell(preflight_page() + " || true")
