# Included last: no strategy may have the name of another rule.
# `snakemake ddp`: all repeats of all settings of a strategy, their verdicts and spot checks.
for strategy in call.strategies_as_targets():

    rule:
        name:
            strategy
        input:
            files.of(plan.runs_of(strategy)),
        message:
            driver.strategy_in_words(strategy)
