# The software environment of a stack. So far: the current interpreter, whose versions are recorded beside the lock.
rule environment:
    input:
        lock=f"{workflow.basedir}/envs/{{stack}}.txt",
    output:
        "results/environments/{stack}.json",
    log:
        "results/logs/environment/{stack}.log",
    benchmark:
        "results/benchmarks/environment/{stack}.tsv"
    localrule: True
    message:
        "Recording the environment of stack {wildcards.stack}"
    shell:
        "{PYTHON:q} {SCRIPTS:q}/environment.py --lock {input.lock:q} --output {output:q} > {log:q} 2>&1"
