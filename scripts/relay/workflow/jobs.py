"""The jobs of a call, as parts of their rules: commands, what is asked of Slurm, and what a job does in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from relay.environments import login_node
from relay.planning import table
from relay.planning.searches import PlannedProbe
from relay.selftest.parts import FAULTS, RESUME
from relay.spec.run import Specification
from relay.workflow.call import Call
from relay.workflow.files import REFERENCE
from relay.workflow.kind import Kind
from relay.workflow.order import Order

LOG = "\n    log: {log}"
REQUEST = (
    "\n    asks for: {resources.nodes} nodes, {resources.tasks} tasks of {resources.cpus_per_task} CPUs,"
    " {params.memory}, {resources.runtime} minutes, {resources.slurm_extra}"
)


class Jobs:
    """All kinds of jobs, each under the name of its rule."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan = call, call.plan
        self.modules = login_node.modules_of(call.site)
        self.message = "{params.words}" + LOG + (REQUEST if call.site else "")
        self.order = Order(call)

    # The kinds

    @cached_property
    def look(self) -> Kind:
        looks = self.plan.looks
        return self._kind("look", looks, "look", "Looking at the task in a job [{}]", spec="looks/{}/look.json")

    @cached_property
    def preflight_job(self) -> Kind:
        sentence = "Preflight: is all right on the nodes for {}?"
        spec = "preflight/{}/preflight.json"
        return self._kind("preflight", self.plan.preflights, "preflight", sentence, spec=spec)

    @cached_property
    def speed(self) -> Kind:
        sentence = "Measuring what a step of {} takes"
        return self._kind("setting", self.call.unmeasured, "measure-speed", sentence, spec="speeds/{}.run.json")

    @cached_property
    def reference(self) -> Kind:
        of, sentence = self.plan.references, "Training the {}"
        kind = self._kind("reference", of, "reference", sentence, options=self._of_reference)
        along = replace(kind, beside=lambda job: self.order.gates_along(job.reference))
        return replace(along, measured=self.order.beside_others(kind.of))

    @cached_property
    def gate(self) -> Kind:
        of, sentence = self.plan.gates, "Gate: does {} compute the same training as its reference?"
        kind = self._kind("gate", of, "gate", sentence, options=self._of_gate)
        along = replace(kind, beside=lambda job: self.order.gates_along(job.gate))
        return replace(along, measured=self.order.beside_others(kind.of), turns=self.order.takes_turns)

    @cached_property
    def segment(self) -> Kind:
        kind = self._kind("run", self.call.runs, "train", "", options=self._of_segment, output=False)
        return replace(kind, words=self._trains)

    @cached_property
    def spot_check(self) -> Kind:
        sentence = "Spot check: did {} compute what one process computes?"
        kind = self._kind("setting", self.plan.spot_checks, "spot-check", sentence, options=self._of_spot_check)
        return replace(kind, beside=lambda job: self.order.runs_along(job.setting))

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
        sentence, spec = "Building and running the smallest C++ program for {}", "libtorch_example/{}/libtorch.json"
        return self._kind("setting", self.plan.libtorch, "libtorch", sentence, spec=spec)

    @cached_property
    def selftest_part(self) -> Kind:
        return Kind(
            call=self.call,
            command="selftest",
            of=self._of_part,
            words=lambda job: f"Self-test: {job.part} of {self.named(job.place)}",
            options=self._of_selftest_part,
            # Who waits for a fault waits for a killed process or a timeout, without computing: runs need not wait.
            measured=lambda job, attempt: 0 if job.part in FAULTS else self.order.share(self._of_part(job), attempt),
        )

    def _kind(
        self,
        wildcard: str,
        specifications: Mapping[str, Specification],
        command: str,
        sentence: str,
        spec: str = "",
        **parts: Any,
    ) -> Kind:
        """A kind of job whose `wildcard` is the id of its specification, which it writes itself to `spec`."""
        return Kind(
            call=self.call,
            command=command,
            of=lambda job: specifications[getattr(job, wildcard)],
            words=lambda job: sentence.format(self.named(getattr(job, wildcard))),
            written=(lambda job: f"results/{spec.format(getattr(job, wildcard))}") if spec else None,
            **{"measured": self.call.at_once} | parts,
        )

    def _search(self, searches: Mapping[str, PlannedProbe], name: str, sentence: str) -> Kind:
        def options(job: Any) -> list[Any]:
            limits = searches[job.setting].limits
            words = ["--unit", limits.unit, "--first", limits.first, "--most", limits.most]
            words += ["--minutes", limits.minutes, "--memory-fraction", limits.memory_fraction]
            return words + (["--memory-mb", limits.node_memory_mb] if limits.node_memory_mb else [])

        probes, spec = {id: search.probe for id, search in searches.items()}, f"{name}/{{}}.run.json"
        return self._kind("setting", probes, name.replace("_", "-"), sentence, spec=spec, options=options)

    def _of_reference(self, job: Any) -> list[Any]:
        return ["--spec", f"results/equivalence/references/{job.reference}/reference.json"]

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
