# What a job asks of Slurm, and what it loads on its node.
def asked_of_slurm(specification_of):
    """A job's resources: what it asks of Slurm, where it goes there. `specification_of` is a function of its wildcards."""
    own = {"attempt": lambda wildcards, attempt: attempt}
    if SITE is None:
        return {"runtime": CONFIG.runtime_minutes, **own}

    def asked(name):
        return lambda wildcards: PLAN.resources(specification_of(wildcards)).get(name)

    names = [*shapes.RESOURCES, *user_limits.all_counters(SITE)]
    return {**{name: asked(name) for name in names}, **own}


# Modules that jobs load. Snakemake takes no function here.
MODULES = login_node.modules_of(SITE)


class Load:
    """The beginning of a job's command: it loads the modules of the job's stack after the site's own, or activates conda.

    `{LOAD:run {wildcards.run}}` names the specification; without such modules there is nothing. Snakemake's `envmodules`
    takes no function. A module that cannot be loaded stops the job later, with a line: its processes look for it.
    """

    def __init__(self):
        self.known = {
            "run": RUNS,
            "gate": PLAN.gates,
            "reference": PLAN.references,
            "preflight": PLAN.preflights,
            "spot_check": PLAN.spot_checks,
            "libtorch": PLAN.libtorch,
            "look": PLAN.looks,
        }

    def __format__(self, asked):
        kind, _, id = asked.partition(" ")
        if (
            kind == "stack"
        ):  # what is built on the login node is built with what its jobs have
            return login_node.load_command(login_node.modules_of_build(SITE, id))
        job = PLAN.job(self.known[kind][id])
        if job is None:
            return ""
        return login_node.load_command(
            job.environment["stack_modules"], job.environment
        )


LOAD = Load()


def specification_of(job):
    """What a job of Snakemake's is the job of; None where it runs on this machine."""
    known, name = LOAD.known, job.rule.name
    of_rule = {"segment": "run", "probe_job": "probe"}
    of_rule |= {
        f"{kind}_job": kind for kind in ("preflight", "libtorch", "largest_model")
    }
    return known.get(of_rule.get(name, name), {}).get(job.wildcards[0])


def more_memory(job, had_mb):
    """What a job that was killed with so much memory asks for when it is tried again (`Plan.more_memory`)."""
    specification = specification_of(job)
    return specification and PLAN.more_memory(specification, had_mb)


def leave_out(job, node):
    """Has a job avoid a node whose hardware has failed, if it can (`Plan.leave_out`)."""
    specification = specification_of(job)
    return specification is not None and PLAN.leave_out(specification, node)


def conda_of(specification_of):
    """The software of a job, which documents it for Snakemake. `specification_of`: a function of its wildcards."""
    return lambda wildcards: login_node.conda_directive(
        SITE, specification_of(wildcards).stack, Path(workflow.basedir)
    )


class Memory:
    """What is asked for in MB, in words: `{MEMORY:{resources.mem_mb}}`."""

    def __format__(self, megabytes):
        return "no memory" if megabytes == "0" else f"{megabytes} MB a node"


MEMORY = Memory()

# The further lines of a job's message: its log and, on a cluster, what it asks for. The first line is the job in words.
ASKED = "\n    log: {log}" + (
    "\n    asks for: {resources.nodes} nodes, {resources.tasks} tasks of {resources.cpus_per_task} CPUs,"
    " {MEMORY:{resources.mem_mb}}, {resources.runtime} minutes, {resources.slurm_extra}"
    if SITE
    else ""
)
