"""The jobs of a call, as parts of their rules: commands, what is asked of Slurm, and what a job does in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, cached_property
from typing import Any

from relay.driver import guard
from relay.environments import login_node
from relay.equivalence.groups import in_groups
from relay.planning import table
from relay.planning.searches import PlannedProbe
from relay.selftest.parts import FAULTS, RESUME
from relay.spec.run import Specification
from relay.workflow import selftest_plan
from relay.workflow.call import Call
from relay.workflow.files import REFERENCE
from relay.workflow.kind import Kind, OfJob

LOG = "\n    log: {log}"
ASKED = (
    "\n    asks for: {resources.nodes} nodes, {resources.tasks} tasks of {resources.cpus_per_task} CPUs,"
    " {params.memory}, {resources.runtime} minutes, {resources.slurm_extra}"
)


class Jobs:
    """All kinds of jobs, each under the name of its rule; and the order in which they go."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan = call, call.plan
        self.modules = login_node.modules_of(call.site)
        self.message = "{params.words}" + LOG + (ASKED if call.site else "")
        # Repeats are interleaved in a random order: earlier ones have the higher priority.
        self._priority = {run.id: len(call.runs) - place for place, run in enumerate(call.plan.runs)}
        # What tells most is proven first; outside of a self-test, all gates are alike.
        self._foremost = [gate.id for gate in (selftest_plan.foremost(call.plan) if call.selftest else [])]
        self._for_foremost = {call.plan.reference_of[gate] for gate in self._foremost}
        if call.selftest and call.at_once > 1:
            call.workflow.register_resource(guard.MEASURED, call.at_once)
            for turn in self._turns.values():
                call.workflow.register_resource(turn, 1)

    # The kinds

    @cached_property
    def look(self) -> Kind:
        looks = self.plan.looks
        return self._kind("look", looks, "look", "Looking at the task in a job [{}]", spec="looks/{}/look.json")

    @cached_property
    def preflight_job(self) -> Kind:
        told = "Preflight: is all right on the nodes for {}?"
        spec = "preflight/{}/preflight.json"
        return self._kind("preflight", self.plan.preflights, "preflight", told, spec=spec)

    @cached_property
    def speed(self) -> Kind:
        told = "Measuring what a step of {} takes"
        return self._kind("setting", self.call.unmeasured, "measure-speed", told, spec="speeds/{}.run.json")

    @cached_property
    def reference(self) -> Kind:
        of, told = self.plan.references, "Training the {}"
        kind = self._kind("reference", of, "reference", told, options=self._of_reference)
        along = replace(kind, beside=lambda job: self._gates_along(job.reference))
        return replace(along, measured=self._beside_others(kind))

    @cached_property
    def gate(self) -> Kind:
        of, told = self.plan.gates, "Gate: does {} compute the same training as its reference?"
        kind = self._kind("gate", of, "gate", told, options=self._of_gate)
        along = replace(kind, beside=lambda job: self._gates_along(job.gate))
        return replace(along, measured=self._beside_others(kind), turns=self._takes_turns)

    @cached_property
    def segment(self) -> Kind:
        kind = self._kind("run", self.call.runs, "train", "", options=self._of_segment, output=False)
        return replace(kind, words=self._trains)

    @cached_property
    def spot_check(self) -> Kind:
        told = "Spot check: did {} compute what one process computes?"
        kind = self._kind("setting", self.plan.spot_checks, "spot-check", told, options=self._of_spot_check)
        return replace(kind, beside=lambda job: self._runs_along(job.setting))

    @cached_property
    def probe_job(self) -> Kind:
        return self._search(self.call.probes, "probe", "Probing the largest batch of {}")

    @cached_property
    def largest_model_job(self) -> Kind:
        return self._search(self.call.searches, "largest_model", "Searching for the largest model of {}")

    @cached_property
    def libtorch_job(self) -> Kind:
        kind = self._kind(
            "setting",
            self.plan.libtorch,
            "libtorch",
            "",
            spec="libtorch/{}/libtorch.json",
            options=self._of_libtorch,
        )
        run = self.plan.libtorch_run
        return replace(kind, words=lambda job: f"Running the model of {self.named(run(job.setting).id)} in C++")

    @cached_property
    def libtorch_example_job(self) -> Kind:
        told, spec = "Building and running the smallest C++ program for {}", "libtorch_example/{}/libtorch.json"
        return self._kind("setting", self.plan.libtorch, "libtorch", told, spec=spec)

    @cached_property
    def selftest_part(self) -> Kind:
        return Kind(
            call=self.call,
            command="selftest",
            of=self._of_part,
            words=lambda job: f"Self-test: {job.part} of {self.named(job.place)}",
            options=self._of_selftest_part,
            # Who waits for a fault waits for a killed process or a timeout, without computing: runs need not wait.
            measured=lambda job, attempt: 0 if job.part in FAULTS else self._share(self._of_part(job), attempt),
        )

    def _kind(
        self,
        wildcard: str,
        known: Mapping[str, Specification],
        command: str,
        told: str,
        spec: str = "",
        **parts: Any,
    ) -> Kind:
        """A kind of job whose `wildcard` is the id of one of `known`. It writes its specification itself, to `spec`."""
        return Kind(
            call=self.call,
            command=command,
            of=lambda job: known[getattr(job, wildcard)],
            words=lambda job: told.format(self.named(getattr(job, wildcard))),
            written=(lambda job: f"results/{spec.format(getattr(job, wildcard))}") if spec else None,
            **{"measured": self.call.at_once} | parts,
        )

    def _search(self, searches: Mapping[str, PlannedProbe], name: str, told: str) -> Kind:
        def options(job: Any) -> list[Any]:
            limits = searches[job.setting].limits
            found = ["--unit", limits.unit, "--first", limits.first, "--most", limits.most]
            found += ["--minutes", limits.minutes, "--memory-fraction", limits.memory_fraction]
            return found + (["--memory-mb", limits.node_memory_mb] if limits.node_memory_mb else [])

        known = {id: search.probe for id, search in searches.items()}
        return self._kind("setting", known, name.replace("_", "-"), told, spec=f"{name}/{{}}.run.json", options=options)

    def _of_reference(self, job: Any) -> list[Any]:
        spec = f"results/equivalence/references/{job.reference}/reference.json"
        return ["--spec", spec]

    def _of_gate(self, job: Any) -> list[Any]:
        reference = REFERENCE.format(self.plan.reference_of[job.gate])
        spec = f"results/equivalence/gates/{job.gate}/gate.json"
        return ["--spec", spec, "--reference", reference]

    def first_step(self, job: Any) -> int:
        """The step at which a segment starts."""
        return self.plan.previous_end(self.call.runs[job.run], int(job.end))

    def _of_segment(self, job: Any) -> list[Any]:
        minutes = [] if self.call.site else ["--minutes", self.call.config.runtime_minutes]
        return ["--run", job.run, "--first", self.first_step(job), "--last", job.end, *minutes]

    def _of_spot_check(self, job: Any) -> list[Any]:
        spec = f"results/equivalence/spot_checks/{job.setting}/spot_check.json"
        runs = [run.id for run in self.plan.spot_check_runs(job.setting)]
        return ["--spec", spec, "--runs", *runs]

    def _of_libtorch(self, job: Any) -> list[Any]:
        return ["--run", self.plan.libtorch_run(job.setting).id]

    def _of_selftest_part(self, job: Any) -> list[Any]:
        folder, name = ("runs", "run") if job.part == RESUME else ("preflight", "preflight")
        return ["--part", job.part, "--spec", f"results/{folder}/{job.place}/{name}.json"]

    def _of_part(self, job: Any) -> Specification:
        """The run that is killed, or the preflight whose processes meet a fault."""
        return self.call.runs[job.place] if job.part == RESUME else self.plan.preflights[job.place]

    # In words

    def named(self, id: str) -> str:
        """What a run, gate, reference or setting is: "ddp (2 procs, 1 thread), repeat 1 [ddp-b755093edb22]".

        The id alone in a job, whose message nobody waits for.
        """
        return f"{self._names[id]} [{id}]" if id in self._names else id

    def of_run(self, job: Any) -> str:
        """A run in words, for a rule's message."""
        return self.named(job.run)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return table.words_by_id(self.plan) if self.call.drives else {}

    def _trains(self, job: Any) -> str:
        """What a segment's job does: a script's run has no steps that the plan knows."""
        run = self.call.runs[job.run]
        if run.strategy.script:
            return f"Running {self.named(run.id)}"
        return f"Training {self.named(run.id)} from step {self.first_step(job)} to {job.end}"

    # The order, and who waits for whom

    def priority_of_preflight(self, job: Any) -> int:
        return len(self.call.runs) + 5

    def priority_of_reference(self, job: Any) -> int:
        return len(self.call.runs) + 2 + 2 * (job.reference in self._for_foremost)

    def priority_of_gate(self, job: Any) -> int:
        return len(self.call.runs) + 1 + 2 * (job.gate in self._foremost)

    def priority_of_start(self, job: Any) -> int:
        """All of them before the first segment, so that the segments are ready together and go in their order."""
        return len(self.call.runs) + 6 + self._priority[job.run]

    def priority_of_segment(self, job: Any) -> int:
        return self._priority[job.run]

    def _beside_others(self, kind: Kind) -> Callable[[Any, int], int]:
        return lambda job, attempt: self._share(kind.of(job), attempt)

    def _share(self, specification: Specification, attempt: int) -> int:
        """How much of `measured` a job takes of which nothing is. One that is tried again is alone, as others' faults
        may be its."""
        at_once = self.call.at_once
        return min(at_once, specification.shape.cpus_per_node) if attempt == 1 else at_once

    @cached_property
    def _groups(self) -> dict[str, str]:
        """By gate, its group: on this machine alone, where jobs wait for each other."""
        if self.call.site:
            return {}
        gates = [self.plan.gates[gate] for gate in dict.fromkeys([*self._foremost, *self.plan.gates])]
        references, of = self.plan.references, self.plan.reference_of
        return in_groups(gates, lambda gate: references[of[gate.id]], self.call.at_once)

    @cached_property
    def _turns(self) -> dict[str, str]:
        """By group, the resource by which its gates wait for each other where others run side by side."""
        groups = dict.fromkeys(self._groups.values()) if self.call.at_once > 1 else ()
        return {group: f"turn_{place}" for place, group in enumerate(groups)}

    @property
    def _takes_turns(self) -> dict[str, OfJob]:
        def takes(group: str) -> OfJob:
            return lambda job: int(self._groups.get(job.gate) == group)

        return {turn: takes(group) for group, turn in self._turns.items()}

    def _gates_along(self, id: str) -> list[str]:
        """The option that names gates which the processes of a reference, or of another gate, judge after it: those of
        its group, with references."""
        mine, to_do = self._groups.get(id, id), {*self._still_to_do("gate")} - {id}
        along = [gate for gate, group in self._groups.items() if group == mine and gate in to_do]
        return ["--beside", *(f"{gate}:{self.plan.reference_of[gate]}" for gate in along)]

    def _runs_along(self, setting: str) -> list[str]:
        """The option that names further runs which a spot check's process checks: those that have ended, too."""
        # Each is computed with the CPUs of its own node, in the same software.
        alike = {name: (check.stack, check.shape.device) for name, check in self.plan.spot_checks.items()}
        others = [each for each in self._still_to_do("spot_check", ready=True) if each != setting]
        along = [each for each in others if alike[each] == alike[setting]]
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

    # When one fails

    def specification_of(self, job: Any) -> Specification | None:
        """What a job of Snakemake's is the job of; None where it runs on this machine."""
        kind = getattr(self, job.rule.name, None)
        return kind.of(job.wildcards) if isinstance(kind, Kind) else None

    def more_memory(self, job: Any, had_mb: int) -> int | None:
        """What a job that was killed with so much memory asks for at its next try (`JobRequests.more_memory`)."""
        specification = self.specification_of(job)
        return self.call.job_requests.more_memory(specification, had_mb) if specification else None

    def leave_out(self, job: Any, node: str) -> bool:
        """Has a job avoid a node whose hardware has failed, if it can (`JobRequests.leave_out`)."""
        specification = self.specification_of(job)
        return specification is not None and self.call.job_requests.leave_out(specification, node)
