"""The order of a call's jobs: their priorities, which run side by side, and which one process does together."""

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from relay.driver import guard
from relay.equivalence.along import in_groups
from relay.workflow import selftest_plan
from relay.workflow.asked import asked
from relay.workflow.call import Call


class Order:
    """Which of a call's jobs go first, and what they wait for beside their inputs."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan = call, call.plan
        self.of_preflight = len(call.runs) + 5
        # Repeats are interleaved in a random order: earlier ones have the higher priority.
        self._priority = {run.id: len(call.runs) - place for place, run in enumerate(call.plan.runs)}
        # What tells most is proven first; outside of a self-test, all gates are alike.
        self._foremost = [gate.id for gate in (selftest_plan.foremost(call.plan) if call.selftest else [])]
        self._for_foremost = {call.plan.reference_of[gate] for gate in self._foremost}
        if call.selftest and call.at_once > 1:
            call.workflow.register_resource(guard.MEASURED, call.at_once)
            for turn in self._turns.values():
                call.workflow.register_resource(turn, 1)

    # Priorities, for rules

    @asked
    def of_reference(self, job: Any) -> int:
        return len(self.call.runs) + 2 + 2 * (job.reference in self._for_foremost)

    @asked
    def of_gate(self, job: Any) -> int:
        return len(self.call.runs) + 1 + 2 * (job.gate in self._foremost)

    @asked
    def of_start(self, job: Any) -> int:
        """All of them before the first segment, so that the segments are ready together and go in their order."""
        return len(self.call.runs) + 6 + self._priority[job.run]

    @asked
    def of_segment(self, job: Any) -> int:
        return self._priority[job.run]

    # Who goes beside whom

    @cached_property
    def _groups(self) -> dict[str, str]:
        """By gate, its group: on this machine alone, where jobs wait for each other."""
        if self.call.site:
            return {}
        gates = [self.plan.gates[gate] for gate in dict.fromkeys([*self._foremost, *self.plan.gates])]
        return in_groups(gates, self.call.at_once)

    @cached_property
    def _turns(self) -> dict[str, str]:
        """By group, the resource by which its gates wait for each other where others run side by side."""
        groups = dict.fromkeys(self._groups.values()) if self.call.at_once > 1 else ()
        return {group: f"turn_{place}" for place, group in enumerate(groups)}

    @property
    def takes_turns(self) -> dict[str, Callable[[Any], int]]:
        """By turn, whether a gate takes it."""

        def takes(group: str) -> Callable[[Any], int]:
            return lambda job: int(self._groups.get(job.gate) == group)

        return {turn: takes(group) for group, turn in self._turns.items()}

    def gates_along(self, id: str) -> list[str]:
        """The option that names gates which the processes of a gate judge after it: those of its group, with
        references."""
        mine, to_do = self._groups.get(id, id), {*self._still_to_do("gate")} - {id}
        along = [gate for gate, group in self._groups.items() if group == mine and gate in to_do]
        return ["--beside", *(f"{gate}:{self.plan.reference_of[gate]}" for gate in along)]

    def runs_along(self, setting: str) -> list[str]:
        """The option that names further runs which a spot check's process checks: those that have ended, too."""
        checks, own = self.plan.spot_checks, self.plan.spot_checks[setting]
        along = [
            each
            for each in self._still_to_do("spot_check", ready=True)
            # Each is computed with the CPUs of its own node, in the same software.
            if each != setting and checks[each].stack == own.stack and checks[each].shape.device == own.shape.device
        ]
        return ["--beside", *(run.id for each in along for run in self.plan.spot_check_runs(each))]

    def _still_to_do(self, rule: str, ready: bool = False) -> list[str]:
        """The wildcards of a rule's jobs that this call has still to do; with `ready`, of those whose inputs are there.

        The list is empty on a cluster, whose jobs do not wait for each other.
        """
        if self.call.site is not None or not self.call.drives:
            return []
        dag, jobs = self.call.workflow.dag, self._jobs_of(rule)
        return [job.wildcards[0] for job in jobs if not dag.finished(job) and (not ready or job in dag.ready_jobs)]

    @cache  # noqa: B019 - each job's command asks for them, and they are chosen before the first one runs
    def _jobs_of(self, rule: str) -> list[Any]:
        """The jobs of a rule that this call has or had to do."""
        jobs = tuple(self.call.workflow.dag.needrun_jobs(exclude_finished=False))
        return [job for job in jobs if job.rule.name == rule]
