"""The rules of a call whose jobs run in a stack's environment: each with its command, and what it does in words."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from relay.environments import login_node
from relay.planning import table
from relay.planning.plan import specification_place
from relay.selftest.parts import FAULTS, RESUME
from relay.spec.run import Specification
from relay.workflow.asked import asked
from relay.workflow.call import Call
from relay.workflow.files import REFERENCE
from relay.workflow.job_rule import JobRule
from relay.workflow.order import Order

LOG = "\n    log: {log}"
REQUEST = (
    "\n    asks for: nodes: {resources.nodes}, tasks: {resources.tasks}, CPUs of each: {resources.cpus_per_task},"
    " {params.memory}, minutes: {resources.runtime}, {resources.slurm_extra}"
)
OF_RUN, OF_REFERENCE, OF_GATE, OF_SPOT_CHECK, OF_PREFLIGHT = (  # where their specifications are
    f"results/{specification_place(rule, '{}')}" for rule in ("run", "reference", "gate", "spot_check", "preflight")
)


class Jobs:
    """All these rules, each under its name."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan = call, call.plan
        self.modules = login_node.modules_of(call.site)
        self.message = "{params.words}" + LOG + (REQUEST if call.site else "")
        self.order = Order(call)
        plan, order, rule = call.plan, self.order, self._rule

        # Looks at the task and at nodes
        sentence = "Looking at the task in a job [{}]"
        self.look = rule("look", "look", plan.looks, sentence, writes="results/looks/{}/look.json")
        sentence = "Preflight: is all right on the nodes for {}?"
        self.preflight_job = rule("preflight", "preflight", plan.preflights, sentence, writes=OF_PREFLIGHT)
        sentence, file = "Measuring what a step of {} takes", "results/speeds/{}.run.json"
        self.speed = rule("measure-speed", "setting", call.unmeasured, sentence, writes=file)

        # Proofs
        self.reference = rule(
            "reference",
            "reference",
            plan.references,
            "Training the {}",
            spec=OF_REFERENCE,
            cpus=lambda job: plan.references[job.reference].shape.cpus_per_node,
        )
        self.gate = rule(
            "gate",
            "gate",
            plan.gates,
            "Gate: does {} compute the same training as its reference?",
            spec=OF_GATE,
            options=lambda job: ["--reference", REFERENCE.format(plan.reference_of[job.gate])],
            beside=lambda job: order.gates_along(job.gate),
            cpus=lambda job: plan.gates[job.gate].shape.cpus_per_node,
            turns=order.takes_turns,
        )
        self.spot_check = rule(
            "spot-check",
            "setting",
            plan.spot_checks,
            "Spot check: did {} compute what one process computes?",
            spec=OF_SPOT_CHECK,
            options=lambda job: ["--runs", *(run.id for run in plan.spot_check_runs(job.setting))],
            beside=lambda job: order.runs_along(job.setting),
        )

        # Runs
        self.segment = rule("train", "run", call.runs, words=self._trains, options=self._of_segment, output=False)

        # What is found out by itself
        sentence, file = "Probing the largest batch of {}", "results/probe/{}.run.json"
        self.probe_job = rule("probe", "setting", call.probes, sentence, writes=file)
        sentence, file = "Searching for the largest model of {}", "results/largest_model/{}.run.json"
        self.largest_model_job = rule("largest-model", "setting", call.searches, sentence, writes=file)
        self.libtorch_job = rule(
            "libtorch",
            "setting",
            plan.libtorch,
            words=lambda job: f"Running the model of {self.named(plan.libtorch_run(job.setting).id)} in C++",
            writes="results/libtorch/{}/libtorch.json",
            options=lambda job: ["--run", plan.libtorch_run(job.setting).id],
        )
        sentence = "Building and running the smallest C++ program for {}"
        file = "results/libtorch_example/{}/libtorch.json"
        self.libtorch_example_job = rule("libtorch", "setting", plan.libtorch, sentence, writes=file)

        # Of a run that is killed, or of a preflight whose processes meet a fault
        places: dict[str, Specification] = {**call.runs, **plan.preflights}
        self.selftest_part = rule(
            "selftest",
            "place",
            places,
            words=lambda job: f"Self-test: {job.part} of {self.named(job.place)}",
            options=_of_part,
            # Who waits for a fault waits for a killed process or a timeout, without computing: runs need not wait.
            cpus=lambda job: 0 if job.part in FAULTS else places[job.place].shape.cpus_per_node,
        )

    @asked
    def first_step(self, job: Any) -> int:
        """The step at which a segment starts."""
        return self.plan.previous_end(self.call.runs[job.run], int(job.end))

    def _of_segment(self, job: Any) -> list[Any]:
        minutes = [] if self.call.site else ["--minutes", self.call.config.runtime_minutes]
        return ["--run", job.run, "--first", self.first_step(job), "--last", job.end, *minutes]

    def _trains(self, job: Any) -> str:
        """What a segment's job does: a script's run has no steps that the plan knows."""
        run = self.call.runs[job.run]
        if run.strategy.script:
            return f"Running {self.named(run.id)}"
        return f"Training {self.named(run.id)} from step {self.first_step(job)} to {job.end}"

    def _rule(
        self,
        command: str,
        wildcard: str,
        specifications: Mapping[str, Specification],
        sentence: str = "",
        **parts: Any,
    ) -> JobRule:
        """A rule; `sentence` says what its job does to the {} that is named in words."""
        named = {"words": lambda job: sentence.format(self.named(getattr(job, wildcard)))}
        return JobRule(
            call=self.call, command=command, wildcard=wildcard, specifications=specifications, **named | parts
        )

    # In words

    def named(self, id: str) -> str:
        """What a run, gate, reference or setting is: "ddp (2 procs, 1 thread), repeat 1 [ddp-b755093edb22]".

        The id alone in a job, whose message nobody waits for.
        """
        return f"{self._names[id]} [{id}]" if id in self._names else id

    @asked
    def of_run(self, job: Any) -> str:
        """A run in words, for a rule's message."""
        return self.named(job.run)

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return table.words_by_id(self.plan) if self.call.drives else {}

    # When one fails

    def specification_of(self, job: Any) -> Specification | None:
        """What a job of Snakemake's is the job of; None where it runs on this machine."""
        rule = getattr(self, job.rule.name, None)
        return rule.of(job.wildcards) if isinstance(rule, JobRule) else None


def _of_part(job: Any) -> list[Any]:
    """The options of a part of the self-test."""
    return ["--part", job.part, "--spec", (OF_RUN if job.part == RESUME else OF_PREFLIGHT).format(job.place)]
