# Does a strategy compute the training that one process computes? A reference for each task and proof batch, and a
# gate for each distinct task, strategy, shape and precision. A failed gate is a verdict, not a failed job.
use rule look as reference with:
    input:
        files.reference,
    output:
        "results/equivalence/references/{reference}/reference.pt",
    pathvars:
        job="reference/{reference}",
    priority: jobs.order.of_reference
    conda:
        jobs.reference.conda
    resources:
        **jobs.reference.resources,
    params:
        **jobs.reference.params,


use rule look as gate with:
    input:
        files.gate,
    output:
        "results/equivalence/gates/{gate}/verdict.json",
    pathvars:
        job="gate/{gate}",
    priority: jobs.order.of_gate
    conda:
        jobs.gate.conda
    resources:
        **jobs.gate.resources,
    params:
        **jobs.gate.params,


# What stands for all scripts that are measured as they stand.
rule script_verdict:
    output:
        GATE.format(NOT_PROVEN),
    log:
        "results/logs/script_verdict.log",
    localrule: True
    message:
        "Scripts are measured as they stand, and not proven"
    run:
        driver.write_not_proven(output[0])


ruleorder: script_verdict > gate


# `snakemake equivalence`: all verdicts, without training a run.
rule equivalence:
    input:
        files.verdicts,
    localrule: True
