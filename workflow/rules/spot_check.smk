# Did the runs themselves compute what one process computes? The job starts when all runs of a setting have ended. One
# plain process loads the states that they kept, and computes a few of their steps again. A failed spot check is a
# verdict, not a failed job.
use rule look as spot_check with:
    input:
        files.spot_check,
    output:
        "results/equivalence/spot_checks/{setting}/verdict.json",
    pathvars:
        job="spot_check/{setting}",
    conda:
        jobs.spot_check.conda
    resources:
        **jobs.spot_check.resources,
    params:
        **jobs.spot_check.params,
