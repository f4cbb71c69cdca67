# Of each file its caption, its category, and what it has, in the report of Snakemake.
REPORTED = {
    "runs.csv": ("runs", "Tables", "runs"),
    "comparison.csv": ("table", "Tables", "settings"),
    "comparison.parquet": ("table", "Tables", "settings"),
    "comparison.md": ("table", "Tables", "settings"),
    "comparison.html": ("page", "Answer", "the whole comparison"),
    "answer.json": ("answer", "Answer", "for programs"),
    "recommendation.sbatch": ("answer", "Answer", "for Slurm"),
    "scaling.csv": ("scaling", "Scaling", "devices"),
    "scaling.md": ("scaling", "Scaling", "devices"),
}


# The comparison of all runs: tables and a report. Where runs have failed for good, `onerror` makes it of the others.
rule comparison:
    input:
        files.comparison,
    output:
        [
            report(
                f"results/{file}",
                caption=f"../report/{caption}.rst",
                category=category,
                labels={"file": file, "what": what},
            )
            for file, (caption, category, what) in REPORTED.items()
        ],
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
