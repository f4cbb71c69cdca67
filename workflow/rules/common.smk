# A file that is not finished is made again. At the end a call says what has come of it.
wildcard_constraints:
    dataset=r"[^/]+",
    file=r"results/.+",
    stack=r"[a-z_]+(-[0-9a-f]{12})?",
    run=r"[^/]+",
    gate=r"(?!script/)[^/]+",  # `script_verdict` makes that of scripts
    reference=r"[^/]+",
    preflight=r"[^/]+",
    end=r"\d+",
    look=r"[^/]+",
    setting=r"[^/]+",


# The first two repeats of every setting, with its proof. With `drop_slower_than` the next call leaves out what was clearly
# slower.
rule first_repeats:
    input:
        files.of_first_repeats,


# A file that is made for as long as another one, which is there and not finished, has to be made anew.
rule unfinished:
    output:
        temp(touch("results/unfinished/{file}")),
    localrule: True
    params:
        why=driver.why,
    message:
        "Making {wildcards.file} anew: it {params.why}"


# What is said at the end of a call.
onsuccess:
    shown.succeeded()


onerror:
    shown.failed()
