# Everything a job has to know, resolved here: jobs read this file, not the config.
rule specification:
    output:
        "results/{kind}/{id}/{name}.json",
    log:
        "results/logs/specification/{kind}/{id}/{name}.log",
    benchmark:
        "results/benchmarks/specification/{kind}/{id}/{name}.tsv"
    wildcard_constraints:
        kind="runs|equivalence/gates|equivalence/references",
        id=r"[^/]+",
        name="run|gate|reference",
    localrule: True
    conda:
        no_environment
    params:
        text=lambda wildcards: specification_text(SPECIFICATIONS[wildcards.id]),
    message:
        "Writing {output}"
    shell:
        "printf '%s\\n' {params.text:q} > {output:q} 2> {log:q}"
