# The comparison of all runs: tables and a report. Where runs have failed for good, `onerror` makes it of the others.
rule comparison:
    input:
        files.comparison,
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
        driver.no_environment
    message:
        "Comparing {plan.strategies}"
    shell:
        driver.job("compare")
        + " --plan results/plan.json --results results > {log:q} 2>&1"
