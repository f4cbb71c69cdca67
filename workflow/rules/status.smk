# `snakemake status`: what is done, running, queued and still to do. It changes nothing, and may be asked for while a
# driver works on the same results, on a cluster too. Shown at the end of the call, by `show_status`.
rule status:
    log:
        "results/logs/status.log",
    localrule: True
    message:
        "Looking at runs and proofs"
    shell:
        ":"
