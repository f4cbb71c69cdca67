"""The files that rules make, and what each rule's job waits for, which is nothing where its output is finished."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from relay.environments import login_node
from relay.planning import handed
from relay.planning.plan import output_place
from relay.run_folder.places import Places
from relay.spec.run import Probe, Run, Specification, Training
from relay.status import finished
from relay.workflow import searches
from relay.workflow.asked import asked
from relay.workflow.call import RESULTS, Call

REFERENCE, GATE, SPOT_CHECK, FACTS = (
    f"results/{output_place(rule, '{}')}" for rule in ("reference", "gate", "spot_check", "preflight")
)
PROBED = "results/probed.yaml"
# Of each file of the comparison its caption, its category, and what it has, in the report of Snakemake.
REPORTED = {
    "comparison.html": ("page", "Answer", "the whole comparison"),
    "comparison.csv": ("table", "Tables", "settings"),
    "comparison.parquet": ("table", "Tables", "settings"),
    "comparison.md": ("table", "Tables", "settings"),
    "runs.csv": ("runs", "Tables", "runs"),
    "answer.json": ("answer", "Answer", "for programs"),
    "recommendation.sbatch": ("answer", "Answer", "for Slurm"),
    "scaling.csv": ("scaling", "Scaling", "devices"),
    "scaling.md": ("scaling", "Scaling", "devices"),
}
COMPARED = [f"results/{file}" for file in (*REPORTED, "pictures")]
CHAIN_RULES = {"start", "segment"}


class Files:
    """What a plan has made, and what of it is missing: each function named after a rule gives its inputs."""

    def __init__(self, call: Call) -> None:
        self.call, self.plan = call, call.plan
        self.why: dict[str, str] = {}  # of what is there and is made anew
        of = [*call.plan.runs, *call.plan.gates.values()]
        self.datasets = {each.dataset.directory_name: each for each in of if each.dataset.name}
        # All of what a target is made of.
        self.of_data = [f"results/datasets/{dataset}/manifest.json" for dataset in self.datasets]
        self.preflights = [FACTS.format(preflight) for preflight in self.plan.preflights]
        self.verdicts = [GATE.format(gate) for gate in self.plan.gates]
        self.speeds = [f"results/speeds/{setting}.json" for setting in self.call.unmeasured]
        self.exported = [f"results/exported/{run.id}.safetensors" for run in self.plan.runs]
        self.in_cpp = [f"results/libtorch/{setting}.json" for setting in self.plan.libtorch]
        self.of_first_repeats = [self.summary_of(run) for run in self.plan.runs if run.repeat < 2]
        self.of_first_repeats += sorted({self.verdict_of(run) for run in self.plan.runs})
        self.of_one_repeat = [self.summary_of(run) for run in self.plan.runs if run.repeat == 0]
        # Of which the comparison is made. Where `snakemake` finds some missing, it names all, not only the last.
        self.of_runs = self.of(self.plan.runs)
        self.one_in_cpp = [f"results/libtorch_example/{setting}.json" for setting in [*self.plan.libtorch][:1]]

    def needed(
        self, output: str | Path, unfinished: str, wanted: Sequence[str], after: Iterable[str] = ()
    ) -> list[str]:
        """The inputs of the job that makes `output`: `wanted`, and none where it is finished (`unfinished` is '').

        So the times of files decide nothing. Where the output is there and not finished, a file more is asked for,
        which has Snakemake make the output anew. `after`: the rules before it; where one of them is forced, or all
        are, the job depends on it again. (Not `ancient`: with it Snakemake leaves undone, in silence, what depends on a
        file that is made anew in the same call.)
        """
        settings, output = self.call.workflow.dag_settings, str(output)
        if unfinished:
            # In a job it is not asked for again: there, the driver has had it made.
            if Path(output).exists() and self.call.drives:
                self.why[output] = unfinished
                return [*wanted, f"results/unfinished/{output}"]
            return [*wanted]
        return [*wanted] if settings.forceall or {*after} & {*settings.forcerun} else []

    # What is made on the login node before any job

    @asked
    def dataset(self, job: Any) -> list[str]:
        file = Path(f"results/datasets/{job.dataset}/manifest.json")
        return self.needed(file, finished.dataset(file.parent, self.datasets[job.dataset].dataset), [])

    @asked
    def environment(self, job: Any) -> list[str]:
        file, made_of = Path(f"results/environments/{job.stack}.json"), self.environment_asked(job.stack)
        why = finished.record(file, asked=made_of) or (login_node.lost(made_of) if self.call.drives else "")
        return self.needed(file, why, [])

    def environment_asked(self, stack: str) -> dict[str, Any]:
        """What its environment is made of."""
        return login_node.environment_of(self.call.site, stack, self.call.root)

    def environment_of(self, specification: Specification) -> str:
        return f"results/environments/{specification.stack}.json"

    @asked
    def look(self, job: Any) -> list[str]:
        return [self.environment_of(self.plan.looks[job.look])]

    @asked
    def preflight(self, job: Any) -> list[str]:
        looked = self.plan.preflights[job.preflight]
        facts = Path(FACTS.format(looked.id))
        # After another module, or another interface, the nodes are looked at anew.
        text = self.call.text(looked) + "\n"
        why = finished.record(facts) or finished.text(facts.with_name("preflight.json"), text)
        return self.needed(facts, why, [self.environment_of(looked)], {"environment", "preflight_job"})

    def waited_for(self, specification: Training) -> list[str]:
        """What has to be there before a job is submitted: data, environment and, on a cluster, a look at its nodes."""
        dataset = specification.dataset
        data = (
            [f"results/datasets/{dataset.directory_name}/manifest.json"] if dataset.name else []
        )  # a script brings it
        looked = [FACTS.format(self.plan.preflight(specification))] if self.call.site else []
        return [*data, self.environment_of(specification), *looked]

    @asked
    def forced(self, job: Any) -> list[str]:
        """What is finished needs none of it. Forced, it is made anew all the same."""
        forced = self.call.workflow.dag_settings.forcerun & {"dataset", "environment", "preflight_job"}
        return [file for run in self.plan.runs for file in self.waited_for(run)] if forced else []

    # Proofs

    @asked
    def reference(self, job: Any) -> list[str]:
        file = REFERENCE.format(job.reference)
        wanted = self.waited_for(self.plan.references[job.reference])
        return self.needed(file, finished.reference(Path(file)), wanted, {"reference"})

    @asked
    def gate(self, job: Any) -> list[str]:
        wanted = [REFERENCE.format(self.plan.reference_of[job.gate]), *self.waited_for(self.plan.gates[job.gate])]
        return self.needed(GATE.format(job.gate), self.unfinished_gate(job.gate), wanted, {"reference", "gate"})

    @cache  # noqa: B019 - a call has one of these
    def unfinished_gate(self, gate: str) -> str:
        return finished.record(Path(GATE.format(gate)), gate=gate)

    @asked
    def spot_check(self, job: Any) -> list[str]:
        wanted = [self.summary_of(run) for run in self.plan.spot_check_runs(job.setting)]
        wanted += self.waited_for(self.plan.spot_checks[job.setting])
        why, after = self.unfinished_spot_check(job.setting), {*CHAIN_RULES, "summary", "spot_check"}
        return self.needed(SPOT_CHECK.format(job.setting), why, wanted, after)

    @cache  # noqa: B019
    def unfinished_spot_check(self, setting: str) -> str:
        runs = [Places(RESULTS, run.id) for run in self.plan.spot_check_runs(setting)]
        return finished.spot_check(Path(SPOT_CHECK.format(setting)), runs)

    def verdict_of(self, run: Run) -> str:
        return GATE.format(self.plan.gate(run))

    def spot_checks_of(self, runs: Iterable[Run]) -> list[str]:
        """The verdicts of the runs' spot checks; none where they are switched off."""
        return [SPOT_CHECK.format(each) for each in sorted({run.setting_id for run in runs} & {*self.plan.spot_checks})]

    # Runs

    @asked
    def start(self, job: Any) -> list[str]:
        run = RESULTS / "runs" / job.run
        return self.needed(run / "start.json", finished.start(run), [])

    @asked
    def segment(self, job: Any) -> list[str]:
        """What a segment goes on from. The first waits for the reference, without which nothing can prove the run."""
        run, end = self.call.runs[job.run], int(job.end)
        places, before, gate = Places(RESULTS, run.id), self.plan.previous_end(run, end), self.plan.gate(run)
        if before:
            wanted = [str(places.state(before))]
        else:
            unproven = gate in self.plan.gates and self.unfinished_gate(gate)
            proof = [REFERENCE.format(self.plan.reference_of[gate])] if unproven else []
            wanted = [str(places.run / "start.json"), *proof, *self.waited_for(run)]
        return self.needed(places.state(end), finished.segment(places, end), wanted, CHAIN_RULES)

    def summary_of(self, run: Run) -> str:
        return f"results/runs/{run.id}/summary.json"

    @asked
    def summary(self, job: Any) -> list[str]:
        run = self.call.runs[job.run]
        wanted = [str(Places(RESULTS, run.id).state(run.length.total_steps))]
        why = self.unfinished_summary(run.id)
        return self.needed(self.summary_of(run), why, wanted, {*CHAIN_RULES, "summary"})

    @cache  # noqa: B019
    def unfinished_summary(self, run: str) -> str:
        return finished.summary(Places(RESULTS, run), self.call.config.warmup_steps)

    # What is made of runs

    def of(self, runs: Sequence[Run]) -> list[str]:
        """The summaries of these runs, and the verdicts on them."""
        verdicts = sorted({self.verdict_of(run) for run in runs})
        return [*map(self.summary_of, runs), *verdicts, *self.spot_checks_of(runs)]

    @cached_property
    def plan_text(self) -> str:
        return json.dumps(handed.plan_json(self.plan), indent=1) + "\n"

    @asked
    def record_plan(self, job: Any) -> list[str]:
        return self.needed("results/plan.json", finished.text(RESULTS / "plan.json", self.plan_text), [])

    @asked
    def comparison(self, job: Any) -> list[str]:
        upstream = {*CHAIN_RULES, "summary", "reference", "gate", "spot_check", "comparison"}
        return self.needed(COMPARED[0], self.unfinished_comparison(), ["results/plan.json", *self.of_runs], upstream)

    def unfinished_comparison(self) -> str:
        """Why the comparison has to be made: a result of its runs is not finished, or it is of others."""
        looked = chain(
            ((self.summary_of(run), self.unfinished_summary(run.id)) for run in self.plan.runs),
            ((GATE.format(gate), self.unfinished_gate(gate)) for gate in {*self.plan.gate_of.values()}),
            ((SPOT_CHECK.format(each), self.unfinished_spot_check(each)) for each in self.plan.spot_checks),
        )
        if missing := next(((file, why) for file, why in looked if why), None):
            return f"needs {missing[0]}, which {missing[1]}"
        return finished.comparison([*map(Path, COMPARED)], RESULTS, json.loads(self.plan_text))

    @asked
    def export(self, job: Any) -> list[str]:
        output, run = Path(f"results/exported/{job.run}.safetensors"), self.call.runs[job.run]
        why = self.unfinished_summary(run.id) or finished.exported(output, RESULTS / "runs" / run.id)
        return self.needed(output, why, [self.summary_of(run)], {*CHAIN_RULES, "export_model"})

    @asked
    def libtorch(self, job: Any) -> list[str]:
        output, run = Path(f"results/libtorch/{job.setting}.json"), self.plan.libtorch_run(job.setting)
        why = self.unfinished_summary(run.id) or finished.of_run(output, RESULTS / "runs" / run.id)
        wanted = [self.summary_of(run), *self.waited_for(self.plan.libtorch[job.setting])]
        return self.needed(output, why, wanted, {*CHAIN_RULES, "libtorch_job"})

    @asked
    def libtorch_example(self, job: Any) -> list[str]:
        return [self.environment_of(self.plan.libtorch[job.setting])]

    # What is found out by itself

    @asked
    def speed(self, job: Any) -> list[str]:
        output = f"results/speeds/{job.setting}.json"
        wanted = self.waited_for(self.call.unmeasured[job.setting])
        return self.needed(output, finished.record(Path(output)), wanted, {"speed"})

    @asked
    def probe(self, job: Any) -> list[str]:
        return self._search("probe", self.call.probes[job.setting])

    @asked
    def largest_model(self, job: Any) -> list[str]:
        return self._search("largest_model", self.call.searches[job.setting])

    def _search(self, folder: str, probe: Probe) -> list[str]:
        output = f"results/{folder}/{probe.id}.json"
        why = finished.record(Path(output), limits=asdict(probe.limits))
        return self.needed(output, why, self.waited_for(probe), {"probe_job", "largest_model_job"})

    @asked
    def probed(self, job: Any) -> list[str]:
        answers = self.answers("probe")
        why = next(filter(None, (finished.record(Path(answer)) for answer in answers)), "")
        why = why or finished.text(Path(PROBED), self.probed_text())
        return self.needed(PROBED, why, answers, {"probe_job"})

    def probed_text(self) -> str:
        """The config with what the probes have found."""
        return searches.config_text(self.plan, self.read("probe"), PROBED)

    def answers(self, folder: str) -> list[str]:
        """The files of all probes, or of all searches for the largest model."""
        searches = self.call.probes if folder == "probe" else self.call.searches
        return [f"results/{folder}/{name}.json" for name in searches]

    def read(self, folder: str) -> dict[str, Any]:
        """What they hold."""
        return {Path(file).stem: json.loads(Path(file).read_text()) for file in self.answers(folder)}
