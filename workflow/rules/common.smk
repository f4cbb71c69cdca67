# What the other files here share.
import json
import shlex
import shutil
from dataclasses import asdict
from functools import cache, cached_property

from relay.base import entry
from relay.base.files import read_json, write_json
from relay.comparison import libtorch as libtorch_page
from relay.driver import claim, signals
from relay.environments import locks, login_node
from relay.equivalence.verdict import of_scripts
from relay.planning import one_alone, shapes, written
from relay.planning.checks import checked_along, in_groups
from relay.process.cpus import granted
from relay.slurm import commands as slurm_commands
from relay.run_folder.places import Places
from relay.spec import user_limits
from relay.spec.script import NOT_PROVEN
from relay.status import finished
from relay.status import page as status_page
from relay.training import speed

# Snakemake has a `chain` of its own in this namespace.
from relay.run_folder import replaced
from relay.run_folder import chain as chain_file


def words(*command):
    """Words of a shell command, quoted for the shell and for Snakemake, which formats it.

    For what is no rule's param: another place of the checkout, or of the data, is no reason to train again.
    """
    return shlex.join(command).replace("{", "{{").replace("}", "}}")


def program(script, *options):
    """The beginning of a shell command that runs one of the project's scripts."""
    path = f"{workflow.basedir}/scripts/{script}"
    return words(*entry.words(sys.executable, path), *options)


def told(script, *options):
    """The beginning of a shell command whose program writes beside the job's log how it ended."""
    return "env TORCH_RELAY_JOB_LOG={log:q} " + program(script, *options)


def job(script, *options):
    """The same for the last program of a job: it takes the shell's place, so that it gets the driver's signals."""
    return "exec " + told(script, *options)


def dataset_source():
    """The options that say where the data is to be taken from."""
    options = []
    if CONFIG.dataset_root:
        options += [f"--root={Path(CONFIG.dataset_root).expanduser()}"]
    if CONFIG.dataset_mirror:
        options += [f"--mirror={CONFIG.dataset_mirror}"]
    return options


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


RUNS = {run.id: run for run in PLAN.runs}
# Repeats are interleaved in a random order: earlier ones have the higher priority.
PRIORITY = {run.id: len(PLAN.runs) - place for place, run in enumerate(PLAN.runs)}
GATES_FIRST = len(PLAN.runs) + 1
STARTS_FIRST = GATES_FIRST + 5
# In a self-test on this machine, jobs of which nothing is measured run side by side, one for each CPU that they use. One
# that is measured takes all of the resource `measured`, as anywhere.
AT_ONCE = 1
if SELFTEST and not SITE and workflow.is_main_process:
    AT_ONCE = min(len(granted()), workflow.resource_settings.cores or 1)
    workflow.register_resource(guard.MEASURED, AT_ONCE)


def beside_others(specification_of):
    """How much of `measured` a job takes of which nothing is. One that is tried again is alone, as others' faults may be its."""
    return lambda wildcards, attempt: (
        min(AT_ONCE, specification_of(wildcards).shape.cpus_per_node)
        if attempt == 1
        else AT_ONCE
    )


RESULTS = Path("results")
CHAIN_RULES = {"start", "segment"}


class Unfinished:
    """Files that are there and are made anew, with the reason: `{UNFINISHED:{wildcards.file}}`."""

    def __init__(self):
        self.why = {}

    def __format__(self, file):
        return self.why.get(file, "is not finished")


UNFINISHED = Unfinished()


def needed(output, unfinished, wanted, after=()):
    """The inputs of the job that makes `output`: `wanted`, and none where it is finished (`unfinished` is '').

    So the times of files decide nothing. Where the output is there and not finished, a file more is asked for, which
    has Snakemake make the output anew. `after`: the rules before it; where one of them is forced, or all are, the job
    depends on it again. (Not `ancient`: with it Snakemake leaves undone, in silence, what depends on a file that is
    made anew in the same call.)
    """
    settings = workflow.dag_settings
    if unfinished:
        # In a job it is not asked for again: there, the driver has had it made.
        if Path(output).exists() and workflow.is_main_process:
            UNFINISHED.why[str(output)] = unfinished
            return [*wanted, f"results/unfinished/{output}"]
        return wanted
    return wanted if settings.forceall or {*after} & {*settings.forcerun} else []


def environment_of(specification):
    return f"results/environments/{specification.stack}.json"


def waited_for(specification):
    """What has to be there before the job is submitted: data, environment and, on a cluster, a look at its nodes."""
    found = [environment_of(specification)]
    if specification.dataset.name:  # a script brings its own data
        found.insert(
            0, f"results/datasets/{specification.dataset.directory_name}/manifest.json"
        )
    if SITE is not None:
        found.append(f"results/preflight/{PLAN.preflight(specification)}/facts.json")
    return found


def no_environment(wildcards):
    """For a rule of the driver's own Python."""


def verdict_of(run):
    return GATE.format(PLAN.gate(run))


def spot_checks_of(runs):
    """The verdicts of the runs' spot checks; none where they are switched off."""
    settings = sorted({run.setting_id for run in runs} & set(PLAN.spot_checks))
    return [SPOT_CHECK.format(setting) for setting in settings]


class Words:
    """What each run, gate, reference and setting is, for rules' messages: `{WORDS:{wildcards.run}}`.

    "ddp (2 procs, 1 thread), repeat 1 [ddp-b755093edb22]"; the id alone in a job, whose message nobody waits for.
    """

    @cached_property
    def by_id(self):
        return table.words_by_id(PLAN) if workflow.is_main_process else {}

    def __format__(self, id):
        return f"{self.by_id[id]} [{id}]" if id in self.by_id else id


WORDS = Words()


def skipped_message(strategy):
    reasons = [
        reason for skipped in PLAN.skipped_of(strategy) for reason in skipped.reasons
    ]
    skipped = "".join(f"\n  skipped: {reason}" for reason in reasons)
    return f"{strategy}: {len(PLAN.runs_of(strategy))} runs{skipped}".replace(
        "{", "{{"
    ).replace("}", "}}")


def specification_text(specification):
    return json.dumps(specification.to_dict(PLAN.job(specification)))


def terminal_width():
    """At least 80 columns, which a table needs."""
    return max(80, shutil.get_terminal_size().columns)


def show_plan():
    """Print the plan; exit status 1 where Slurm would refuse a job."""
    plan = PLAN
    entry.print_anywhere()
    if UNMEASURED:  # what was just measured tells how many jobs there are
        measured = [Path(f"results/speeds/{setting}.json") for setting in UNMEASURED]
        speed.remember(measured, PLAN.speeds)
        plan = planned(CONFIG)
    print(table.render(plan, width=terminal_width()), flush=True)
    if plan.refused:
        sys.exit("\n".join(f"error: {problem}" for problem in plan.refused))


def show_skipped():
    """Print which settings are skipped, and why."""
    entry.print_anywhere()
    for line in table.skipped(PLAN):
        print(line, flush=True)


def show_status():
    """Print how far the plan is: its runs, with Slurm's queue where they are jobs, and its proofs."""
    entry.print_anywhere()
    watch.tries = slurm_commands.TRIES
    standings = watch.look()
    proofs = {GATES: [*PLAN.gates], SPOT_CHECKS: [*PLAN.spot_checks]}
    print(
        status_page.render(
            standings, proofs, Path("results"), news=watch.news, width=terminal_width()
        ),
        end="",
        flush=True,
    )
    for line in status_page.driver(claim.working(Path.cwd()), PLAN.runs, RESULTS):
        print(line, flush=True)


def show_measured():
    """Print what was measured of the strategies that this call names as targets."""
    from relay.comparison import alone

    entry.print_anywhere()
    named = {name for name in workflow.dag_settings.targets if name in PLAN.strategies}
    for line in alone.lines(written.content(PLAN), Path("results"), named):
        print(line, flush=True)


def show_trained():
    """Print where the one training of `snakemake chain` lies."""
    entry.print_anywhere()
    for line in one_alone.trained(PLAN, Path("results")):
        print(line, flush=True)


def preflight_page():
    """Shows what the preflights found, of the shapes that are planned."""
    return program(
        "preflight.py", "--page", "results/preflight", "--only", *PLAN.preflights
    )


def asked_for(name):
    """Whether this call had a job of that rule to do."""
    jobs = workflow.dag.needrun_jobs(exclude_finished=False)
    return any(job.rule.name == name for job in jobs)


@cache  # each job's command asks for them, and they are chosen before the first one runs
def jobs_of(name):
    """The jobs of a rule that this call has or had to do."""
    jobs = tuple(workflow.dag.needrun_jobs(exclude_finished=False))
    return [job for job in jobs if job.rule.name == name]


def still_to_do(name, ready=False):
    """The wildcards of a rule's jobs that this call has still to do; with `ready`, of those whose inputs are there.

    The list is empty on a cluster, whose jobs do not wait for each other.
    """
    if SITE is not None or not workflow.is_main_process:
        return []
    dag = workflow.dag
    return [
        job.wildcards[0]
        for job in jobs_of(name)
        if not dag.finished(job) and (not ready or job in dag.ready_jobs)
    ]


def renew_report(log):
    """The report that is there, if any, with what a target beside the comparison has found since."""
    if Path("results/comparison.csv").exists():
        shell(
            program("compare.py")
            + " --plan results/plan.json --results results --partial > {log:q} 2>&1"
        )


def show_comparison():
    shell(program("show_comparison.py") + " --results results")


def show_finished():
    """Show the comparison again where all of it was there: `onsuccess` has shown one that was made."""
    if not asked_for("comparison") and not unfinished_comparison():
        show_comparison()


# A file that is made for as long as another one, which is there and not finished, has to be made anew.
rule unfinished:
    output:
        temp(touch("results/unfinished/{file}")),
    localrule: True
    conda:
        no_environment
    message:
        "Making {wildcards.file} anew: it {UNFINISHED:{wildcards.file}}"
