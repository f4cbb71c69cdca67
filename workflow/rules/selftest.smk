# `snakemake selftest`: does everything work on these devices? Gates, runs, each of them killed and resumed, planted
# faults, probes and a trained model in C++; then one page, results/selftest.md, of what worked and what did not. A part
# that fails ends no other one. The configs in config/selftest say what is tested; other calls plan nothing of it.
from relay.selftest.parts import FAULTS, RESUME

SELFTEST_PAGE = Path("results/selftest.md")
OF_SELFTEST = "results/selftest/{part}/{place}.json"
FACTS = "results/preflight/{}/facts.json"
# Faults are planted where pairs of processes are planned.
PAIRS = selftest.pairs(PLAN) if SELFTEST else {}
# Jobs on a cluster wait for theirs; on this machine the pairs' are enough.
LOOKS = (PLAN.preflights if SITE else PAIRS) if SELFTEST else {}
SELFTEST_PARTS = [
    *((RESUME, run.id) for run in PLAN.runs if SELFTEST),
    *(
        (name, pair.id)
        for pair in PAIRS.values()
        for name, fault in FAULTS.items()
        if fault.met_by(pair.shape)
    ),
]
LOAD.known |= {RESUME: RUNS, **dict.fromkeys(FAULTS, PLAN.preflights)}


def of_part(wildcards):
    """The run that is killed, or the preflight whose processes meet a fault."""
    return LOAD.known[wildcards.part][wildcards.place]


def before_part(wildcards):
    output = OF_SELFTEST.format(**wildcards)
    if wildcards.part == RESUME:
        wanted = [summary_of(of_part(wildcards)), *waited_for(of_part(wildcards))]
    else:
        wanted = [FACTS.format(wildcards.place)]
    why = finished.record(Path(output)) or selftest.not_right(Path(output))
    return needed(output, why, wanted, {"selftest_part"})


rule selftest_part:
    input:
        before_part,
    output:
        OF_SELFTEST,
    log:
        "results/logs/selftest/{part}/{place}.log",
    benchmark:
        "results/benchmarks/selftest/{part}/{place}.tsv"
    wildcard_constraints:
        part="|".join((RESUME, *FAULTS)),
    conda:
        conda_of(of_part)
    envmodules:
        *MODULES,
    resources:
        **asked_of_slurm(of_part),
        # Who waits for a fault waits for a killed process or a timeout, without computing: runs need not wait for it.
        measured=lambda wildcards, attempt: (
            0
            if wildcards.part in FAULTS
            else beside_others(of_part)(wildcards, attempt)
        ),
    params:
        specification=lambda wildcards: (
            f"results/runs/{wildcards.place}/run.json"
            if wildcards.part == RESUME
            else f"results/preflight/{wildcards.place}/preflight.json"
        ),
    message:
        "Self-test: {wildcards.part} of {WORDS:{wildcards.place}}" + ASKED
    shell:
        "{LOAD:{wildcards.part} {wildcards.place}}"
        + job("selftest.py")
        + " --part {wildcards.part:q} --spec {params.specification:q} --output {output:q} >> {log:q} 2>&1"


def selftest_rows():
    """What the records say of each part, for the page."""
    from relay.selftest.rows import Records

    known = Records(RESULTS, table.words_by_id(PLAN))
    for look in LOOKS.values():
        yield known.of_preflight(look)
    for gate in PLAN.gates.values():
        of_node = f"preflight/{PLAN.preflight(gate)}"
        reference = f"reference/{PLAN.reference_of[gate.id]}"
        yield known.of_gate(gate, f"environment/{gate.stack}", of_node, reference)
    for run in PLAN.runs:
        yield from known.of_run(run)
    for setting in PLAN.spot_checks:
        yield known.of_spot_check(setting)
    for part, place in SELFTEST_PARTS:
        yield known.of_own_part(part, place, PAIRS.get(place))
    for planned in PROBES.values():
        yield known.of_probe(planned.probe)
    for setting in PLAN.libtorch:
        yield known.of_libtorch(setting)
    for line in dict.fromkeys(table.skipped(PLAN)):  # of several tasks
        yield known.of_skipped(line)


def write_selftest(running=""):
    """Write the page; its rows. `running`: how far the call is, as long as it goes on."""
    from relay.selftest import page

    rows = list(selftest_rows())
    where = f"the cluster {SITE.name}" if SITE else selftest.described(PLAN, gpu_count)
    page.write(rows, RESULTS, where, SELFTEST_PAGE, running)
    return rows


def show_selftest():
    """Write the page, and show how it begins."""
    from relay.selftest import page

    rows = write_selftest()
    for row in page.wrong(rows):
        print(f"{row.outcome}: {row.what}: {row.told}")
    print(f"Self-test: {page.counted(rows)}. The page: {SELFTEST_PAGE}", flush=True)


def end_selftest():
    """Exit status 1 where a part has not worked, as where a job has failed."""
    from relay.selftest import page

    sys.exit(1 if page.wrong([*selftest_rows()]) else 0)


# Without any output: the page is written at the end of each call, whatever has failed.
rule selftest:
    input:
        [FACTS.format(look) for look in LOOKS],
        [GATE.format(gate) for gate in PLAN.gates if SELFTEST],
        [summary_of(run) for run in PLAN.runs if SELFTEST],
        [SPOT_CHECK.format(setting) for setting in PLAN.spot_checks if SELFTEST],
        [OF_SELFTEST.format(part=part, place=place) for part, place in SELFTEST_PARTS],
        [f"results/probe/{name}.json" for name in PROBES if SELFTEST],
        [LIBTORCH if SELFTEST else []],
    log:
        "results/logs/selftest.log",
    localrule: True
    conda:
        no_environment
    message:
        "The self-test is done"
    shell:
        ":"
