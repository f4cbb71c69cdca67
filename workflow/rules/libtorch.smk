# `snakemake libtorch`: the trained model of each task in a C++ program, without Python. One job exports the model, builds
# the program once, and compares outputs and speed with Python's. Outputs that differ are a finding, not a failed job.
use rule look as libtorch_job with:
    input:
        files.libtorch,
    output:
        "results/libtorch/{setting}.json",
    pathvars:
        job="libtorch/{setting}",
    conda:
        jobs.libtorch_job.conda
    resources:
        **jobs.libtorch_job.resources,
    params:
        **jobs.libtorch_job.params,


# Shown at the end of each call. A report that is there gets its section on C++.
rule libtorch:
    input:
        files.in_cpp,
    localrule: True
    message:
        "Trained models in C++"


use rule look as libtorch_example_job with:
    input:
        files.libtorch_example,
    output:
        "results/libtorch_example/{setting}.json",
    pathvars:
        job="libtorch_example/{setting}",
    conda:
        jobs.libtorch_example_job.conda
    resources:
        **jobs.libtorch_example_job.resources,
    params:
        **jobs.libtorch_example_job.params,


# `snakemake libtorch_example`: the smallest C++ program, in the first task's job. Nothing is trained for it.
rule libtorch_example:
    input:
        files.one_in_cpp,
    localrule: True
    message:
        "The smallest C++ program"
