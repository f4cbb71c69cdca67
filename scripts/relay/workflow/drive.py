"""What the driver keeps to in a call: `driver.guard`, told of the plan."""

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path

from relay.driver import guard
from relay.driver.retries import Retries
from relay.driver.targets import unknown_targets
from relay.environments import login_node
from relay.equivalence.along import settle
from relay.launch import gpus
from relay.planning import chains, handed, scripts, table
from relay.spec import strategy_files
from relay.status import finished
from relay.workflow import searches, unready
from relay.workflow.call import RESULTS, Call
from relay.workflow.jobs import Jobs
from relay.workflow.shown import Shown


def drive(call: Call, jobs: Jobs, shown: Shown) -> None:
    """One driver for these results, which waits for a killed one's jobs, and cancels its own when it is ended."""
    if call.drives:
        guard.guard(call.workflow, Wants(call, jobs), shown)


class Wants(guard.Wants):
    """What this workflow wants of a call."""

    def __init__(self, call: Call, jobs: Jobs) -> None:
        self.call, self.plan = call, call.plan
        self.reading = {"card", "status"} | (set() if call.unmeasured else {"plan"})
        self.cluster, self.held = call.site.name if call.site else None, call.held
        self.first = [f"results/cards/{card}.json" for card in self.plan.looks]
        self.retries = partial(Retries, requests=call.job_requests, specification_of=jobs.specification_of)

    def refused(self, targets: Collection[str]) -> Iterable[str]:
        plan, config = self.plan, self.call.config
        names = {
            "strategy": strategy_files.find([Path(folder) for folder in config.strategy_folders]),
            "run": list(self.call.runs),
            "gate": plan.gates,
            "reference": plan.references,
        }
        lines = [*unknown_targets(self.call.workflow, names), *searches.refusals(plan, targets)]
        lines += [*scripts.refusals(config, targets), *chains.refusals(plan, targets)]
        if lines or self.first or {*targets} == {"card"}:
            return lines
        return filter(None, [table.nothing_for(plan, targets)])

    def missing(self) -> Iterator[str]:
        workflow, held, site = self.call.workflow, self.call.held, self.call.site
        if held and held.elsewhere:
            yield held.elsewhere
        yield from unready.unready(self.plan)
        if site:
            yield from unready.unfit_paths(*workflow.config_settings.configfiles)
        methods = {method.item_to_choice() for method in workflow.deployment_settings.deployment_method}
        yield from login_node.undeployed(site, methods)
        if self.plan.over_budget:
            yield self.plan.over_budget

    def notes(self) -> Iterable[str]:
        return [*table.unknown(self.plan), *table.skipped(self.plan)]

    def prepare(self) -> None:
        handed.prepare(self.plan)
        handed.hand_over(self.plan, selftest=self.call.selftest, workflow=self.call.workflow)
        settle(RESULTS)
        finished.settle(RESULTS)
        gpus.begin_mps()
