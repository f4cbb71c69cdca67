# The software environment of a stack, as far as the login node prepares it: wheels are fetched and checked here, and
# installed on each node's own disk by the job. Of what the site provides, and of the driver's own environment, a record
# is kept beside the lock. The lock is in what is asked, by its digest: no input, for its time is that of a checkout.
rule environment:
    input:
        files.environment,
    output:
        "results/environments/{stack}.json",
    log:
        "results/logs/environment/{stack}.log",
    benchmark:
        "results/benchmarks/environment/{stack}.tsv"
    localrule: True
    conda:
        driver.no_environment
    params:
        before=driver.load_to_build,
        asked=driver.stack_text,
        lock=driver.lock,
    message:
        "Preparing the environment of stack {wildcards.stack}"
    shell:
        "{params.before}"
        + driver.with_ending("environment")
        + " --lock {params.lock:q} --asked {params.asked:q} --output {output:q} 2>&1 | tee {log:q}"
