"""What the driver keeps to in a call: `driver.guard`, told of the plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from relay.driver import guard, refused
from relay.driver.view import View
from relay.environments import login_node
from relay.equivalence.job import settle
from relay.launch import gpus
from relay.planning import chains, handed, planner, scripts, searches, table
from relay.spec import requirements
from relay.status import finished
from relay.workflow.call import RESULTS, Call
from relay.workflow.jobs import Jobs
from relay.workflow.shown import Shown


def drive(call: Call, jobs: Jobs, shown: Shown) -> None:
    """One driver for these results, which waits for a killed one's jobs, and cancels its own when it is ended."""
    if not call.drives:
        return
    plan, view = call.plan, View(call.watch, proofs=call.proofs)
    known = {
        "strategy": requirements.find([Path(folder) for folder in call.config.strategy_folders]),
        "run": list(call.runs),
        "gate": plan.gates,
        "reference": plan.references,
    }
    rules = guard.Rules(
        known=known,
        reading={"card", "status"} | (set() if call.unmeasured else {"plan"}),
        missing=[*_missing(call)],
        refused=lambda targets: _refused(call, targets),
        cluster=call.site.name if call.site else None,
        held=call.held,
        first=[f"results/cards/{card}.json" for card in plan.looks],
        before=lambda: _prepare(call),
        notes=[*table.unknown(plan), *table.skipped(plan)],
        nothing_for=lambda targets: "" if {*targets} == {"card"} else table.nothing_for(plan, targets),
        concluding=lambda targets: _conclusion(call, targets),
        more_memory=jobs.more_memory,
        leave_out=jobs.leave_out,
        afterwards=shown.afterwards,
        dry={"card"},
        meanwhile=shown.meanwhile,
        view=view,
    )
    guard.guard(call.workflow, rules)


def _missing(call: Call) -> Iterator[str]:
    """What has to be filled in first."""
    workflow, plan = call.workflow, call.plan
    if call.held and call.held.elsewhere:
        yield call.held.elsewhere
    yield from planner.unready(plan)
    if call.site:
        yield from planner.unfit_paths(*workflow.config_settings.configfiles)
    methods = {method.item_to_choice() for method in workflow.deployment_settings.deployment_method}
    yield from login_node.undeployed(call.site, methods)
    if plan.over_budget:
        yield plan.over_budget


def _refused(call: Call, targets: Collection[str]) -> list[str]:
    """Why these targets cannot be asked for."""
    plan = call.plan
    told = [*searches.refusals(plan, targets), *scripts.refusals(call.config, targets)]
    return [*told, *chains.refusals(plan, targets)]


def _prepare(call: Call) -> None:
    """What is done before Snakemake looks at the files, once this driver is the only one."""
    handed.prepare(call.plan)
    handed.hand_over(call.plan, selftest=call.selftest, workflow=call.workflow)
    settle(RESULTS)
    finished.settle(RESULTS)
    gpus.begin_mps()


def _conclusion(call: Call, targets: Collection[str]) -> tuple[str, bool]:
    plan, every = call.plan, {*targets} <= {"all", "comparison"}
    runs = [run for run in plan.runs if every or run.strategy.name in targets]
    return refused.conclusion([(run.id, plan.gate(run), run.setting_id) for run in runs])
