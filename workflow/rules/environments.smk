# The software environment of a stack, as far as the login node prepares it: wheels are fetched and checked here, and
# installed on each node's own disk by the job. Of what the site provides, and of the driver's own environment, a record
# is kept beside the lock.


def asked_of_stack(stack):
    return login_node.asked(SITE, stack, Path(workflow.basedir))


def before_environment(wildcards):
    file = Path(f"results/environments/{wildcards.stack}.json")
    return needed(
        file, finished.record(file, asked=asked_of_stack(wildcards.stack)), []
    )


# The lock is in what is asked, by its digest: no input, for its time is that of a checkout.
rule environment:
    input:
        before_environment,
    output:
        "results/environments/{stack}.json",
    log:
        "results/logs/environment/{stack}.log",
    benchmark:
        "results/benchmarks/environment/{stack}.tsv"
    localrule: True
    conda:
        no_environment
    params:
        # Whom it is for (a GPU run or not) changes nothing that is prepared.
        asked=lambda wildcards: json.dumps(asked_of_stack(wildcards.stack)),
        lock=lambda wildcards: str(
            locks.lock_of(Path(workflow.basedir), wildcards.stack)
        ),
    message:
        "Preparing the environment of stack {wildcards.stack}"
    shell:
        "{LOAD:stack {wildcards.stack}}"
        + told("environment.py")
        + " --lock {params.lock:q} --asked {params.asked:q} --output {output:q}"
        " 2>&1 | tee {log:q}"
