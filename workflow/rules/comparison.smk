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
