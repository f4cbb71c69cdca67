# Torch Relay: trains one task under every parallel strategy and compares them.
#   snakemake --profile profiles/local            the whole comparison of config/config.yaml
#   snakemake --profile profiles/local -n         what would run
#   snakemake --profile profiles/local plan       jobs and hours at most to be spent, before anything runs
#   snakemake --profile profiles/local card       the task in words: what was seen of it, and what that means
#   snakemake --profile profiles/local data           the task's data only
#   snakemake --profile profiles/local ddp        one strategy only
#   snakemake --profile profiles/local first_repeats   each setting twice
#   snakemake --profile profiles/local chain      one training alone, as jobs until it has ended
#   snakemake --profile profiles/local status     what is done, running, queued and still to do
#   snakemake --profile profiles/local probe      the largest batches that fit, as a config
#   snakemake --profile profiles/local largest_model   the largest model that fits, for each setting
#   snakemake --profile profiles/local export     the trained models, as safetensors
#   snakemake --profile profiles/local libtorch   the trained models in a C++ program, beside Python
#   snakemake --profile profiles/local libtorch_example   the smallest C++ program, without any training
#   snakemake --profile profiles/slurm preflight  is PyTorch all right on this cluster?
#   snakemake --profile profiles/slurm selftest   does all of this work on these devices?
import gc
import os
import sys
from functools import cache, partial
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")
# What imports and planning make stays. Looking through it again and again for garbage took a seventh of a dry run.
gc.freeze()
gc.set_threshold(100_000)

sys.path.insert(0, f"{workflow.basedir}/scripts")
from relay.base import lifeline
from relay.card.words import all_in_words
from relay.driver import first_look, full_disk, guard, refused
from relay.driver.view import View
from relay.environments import login_node
from relay.equivalence.job import settle
from relay.planning import (
    cards,
    gpus,
    handed,
    here,
    largest_models,
    one_alone,
    one_gpu,
    planner,
    probed,
    reading,
    scripts,
    selftest,
    settings,
    shrink,
    table,
)
from relay.planning.cards import NotKnown
from relay.planning.config import load
from relay.planning.plan import Plan
from relay.run_folder import layout
from relay.base.errors import UserError
from relay.spec import requirements, user_limits
from relay.spec.arithmetic import Arithmetic
from relay.slurm.held import Held
from relay.spec.site import leave_to_slurm, load_site, site_of
from relay.status.page import GATES, SPOT_CHECKS
from relay.status.watch import Watch
from relay.training import changed_code

if workflow.remote_exec:  # in a Slurm job
    lifeline.end_with_shell()
full_disk.show_no_tracebacks_of_logs()
DEFAULTS = Path(f"{workflow.basedir}/config/config.yaml")
# Before Snakemake reads it: its words for a mistake do not name the file.
try:
    reading.read_config(DEFAULTS)
except UserError as error:
    sys.exit(f"error: {error}")


configfile: f"{workflow.basedir}/config/config.yaml"


report: "workflow/report/workflow.rst"


# A mistake in the config is one line for each, before any job is queued.
try:
    if not workflow.is_main_process:  # Snakemake starts itself again in each job
        SELFTEST, PLAN = handed.handed()
        CONFIG, SITE = PLAN.config, PLAN.site
    else:
        SELFTEST = selftest.chosen(
            workflow.config_settings, Path(workflow.basedir), sys.argv
        )
        GIVEN = reading.given_config(workflow, DEFAULTS)
        CONFIG = shrink.applied(load(GIVEN))
        SITE_NAME = CONFIG.site or site_of(
            workflow.resource_settings.default_resources or {}
        )
        SITE = load_site(SITE_NAME, Path(workflow.basedir)) if SITE_NAME else None
        if SITE and user_limits.DRIVER_JOB in os.environ:
            SITE = user_limits.beside_driver(SITE)
        layout.refuse_other(Path("results"))
        HELD = None if SITE else Held.here()
        gpu_count = cache(gpus.count_gpus)
        planned = partial(
            planner.plan,
            root=Path(workflow.basedir),
            site=SITE,
            gpus=gpu_count,
            sharing=(
                one_gpu.of_this_machine(gpu_count)
                if SELFTEST and not SITE and CONFIG.device != "cpu"
                else one_gpu.Sharing()
            ),
            held=HELD,
            arithmetic=Arithmetic.here(),
            record=True,
            look=True,
            prepare=not first_look.dry(sys.argv[1:]),
            reading=first_look.only_reads(sys.argv[1:]),
        )
        try:
            PLAN = planned(CONFIG)
        except UserError as error:
            if not first_look.only_reads(sys.argv[1:]):
                raise
            if "status" in sys.argv:
                PLAN = handed.last(CONFIG, because=error)
            else:  # a list, for which the strategies' names are enough
                named = dict.fromkeys(each.strategy for each in CONFIG.comparisons)
                PLAN = Plan(CONFIG, Path(workflow.basedir), None, [*named])
                PLAN.warnings.append(str(error))
        if SELFTEST:
            for file in selftest.further(
                workflow.config_settings, Path(workflow.basedir)
            ):
                of_gates = load(GIVEN | reading.read_config(file))
                selftest.add_gates(PLAN, planned(of_gates))
        # Snakemake tells its targets only after this file is read.
        unplanned = {"card", "plan", "probe", "status", largest_models.TARGET}
        if not unplanned & set(sys.argv):
            PLAN.check_measured()
        here.check(PLAN)
        if PLAN.looks and "status" in sys.argv:
            raise NotKnown(*table.unknown(PLAN))
except NotKnown as error:
    print(error, file=sys.stderr)
    sys.exit(0)
except UserError as error:
    sys.exit(f"error: {error}")
except KeyboardInterrupt:
    sys.exit("error: interrupted")
if workflow.is_main_process:
    if SELFTEST and not SITE:
        print(f"self-test on {selftest.described(PLAN, gpu_count)}", file=sys.stderr)
    if HELD:
        print(f"{HELD.words}; no more is planned with", file=sys.stderr)
    for warning in [
        *PLAN.warnings,
        *changed_code.warnings(PLAN.runs, Path("results")),
    ]:
        print(f"warning: {warning}", file=sys.stderr)
    if SITE:
        leave_to_slurm(SITE, os.environ)
        # Snakemake keeps the sum over all jobs that it has submitted at these.
        for name, counter in user_limits.all_counters(SITE).items():
            workflow.register_resource(name, counter.most)
    unmeasured = {run.setting_id for run in PLAN.unmeasured}
    watch = Watch(
        PLAN.runs,
        names=partial(table.words_by_id, PLAN),
        ends=lambda run: None if run.setting_id in unmeasured else PLAN.segments(run),
        results=Path("results"),
        on_slurm=SITE is not None,
    )
    # One driver for these results, which waits for a killed one's jobs, and cancels its own when it is ended.
    guard.guard(
        workflow,
        guard.Rules(
            known={
                "strategy": requirements.find(map(Path, CONFIG.strategy_folders)),
                "run": [run.id for run in PLAN.runs],
                "gate": PLAN.gates,
                "reference": PLAN.references,
            },
            reading={"card", "status"} | (set() if PLAN.unmeasured else {"plan"}),
            missing=[
                *filter(None, [HELD and HELD.elsewhere]),
                *PLAN.unready,
                *(
                    here.unfit_paths(*workflow.config_settings.configfiles)
                    if SITE
                    else ()
                ),
                *login_node.undeployed(
                    SITE,
                    {
                        m.item_to_choice()
                        for m in workflow.deployment_settings.deployment_method
                    },
                ),
                *filter(None, [PLAN.over_budget]),
            ],
            refused=lambda targets: [
                *probed.refusals(CONFIG, targets),
                *largest_models.refusals(PLAN, targets),
                *scripts.refusals(CONFIG, targets),
                *one_alone.refusals(PLAN, targets),
            ],
            cluster=SITE_NAME,
            held=HELD,
            first=[f"results/cards/{card}.json" for card in PLAN.looks],
            before=lambda: [
                PLAN.prepare(),
                handed.hand_over(PLAN, selftest=SELFTEST, workflow=workflow),
                settle(RESULTS),
                finished.settle(RESULTS),
                one_gpu.begin_mps(),
            ],
            notes=[*table.unknown(PLAN), *table.skipped(PLAN)],
            nothing_for=lambda targets: (
                "" if {*targets} == {"card"} else table.nothing_for(PLAN, targets)
            ),
            concluding=lambda targets: refused.conclusion(
                [
                    (run.id, PLAN.gate(run), run.setting_id)
                    for run in PLAN.runs
                    if targets <= {"all", "comparison"} or run.strategy.name in targets
                ]
            ),
            more_memory=lambda job, had_mb: more_memory(job, had_mb),
            leave_out=lambda job, node: leave_out(job, node),
            afterwards={
                "all": lambda: show_finished(),
                "card": lambda: show_cards(),
                "chain": lambda: show_trained(),
                "equivalence": lambda: show_skipped(),
                "plan": lambda: show_plan(),
                "status": lambda: show_status(),
                "selftest": lambda: end_selftest(),
                **dict.fromkeys(PLAN.strategies, lambda: show_measured()),
            },
            dry={"card"},
            meanwhile=lambda done, total: (
                write_selftest(f"{done} of {total} jobs done") if SELFTEST else None
            ),
            view=View(
                watch, proofs={GATES: [*PLAN.gates], SPOT_CHECKS: [*PLAN.spot_checks]}
            ),
        ),
    )


include: "workflow/rules/common.smk"
include: "workflow/rules/jobs.smk"
include: "workflow/rules/card.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/environments.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/equivalence.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/spot_check.smk"
include: "workflow/rules/comparison.smk"
include: "workflow/rules/planning.smk"
include: "workflow/rules/status.smk"
include: "workflow/rules/probe.smk"
include: "workflow/rules/export.smk"
include: "workflow/rules/libtorch.smk"
include: "workflow/rules/selftest.smk"


# The first two repeats of every setting, with its proof. With `drop_slower_than` the next call leaves out what was clearly
# slower.
rule first_repeats:
    input:
        [summary_of(run) for run in PLAN.runs if run.repeat < 2],
        sorted({verdict_of(run) for run in PLAN.runs}),
    conda:
        no_environment


rule all:
    default_target: True
    input:
        "results/plan.json",
        COMPARED,
        OF_RUNS,
        # What is finished needs none of it. Forced, it is made anew all the same.
        lambda wildcards: (
            [file for run in PLAN.runs for file in waited_for(run)]
            if workflow.dag_settings.forcerun
            & {"dataset", "environment", "preflight_job"}
            else []
        ),
    conda:
        no_environment


if taken := [name for name in PLAN.strategies if workflow.is_rule(name)]:
    sys.exit(
        f"error: config: comparisons: '{taken[0]}' is the name of a target; give the command another `name`"
    )


# `snakemake ddp`: all repeats of all settings of a strategy, their verdicts and spot checks.
for strategy in PLAN.strategies:

    rule:
        name:
            strategy
        input:
            [summary_of(run) for run in PLAN.runs_of(strategy)],
            [verdict_of(run) for run in PLAN.runs_of(strategy)],
            spot_checks_of(PLAN.runs_of(strategy)),
        conda:
            no_environment
        message:
            skipped_message(strategy)
