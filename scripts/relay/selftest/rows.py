"""What the records of a self-test say, as rows of its page. Each row belongs to a row of docs/untested.md."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from relay.base import ending
from relay.base.files import read_json_or
from relay.equivalence.verdict import ALONG
from relay.preflight.findings import recorded
from relay.preflight.page import FAILED, state
from relay.run_folder.verdicts import all_problems
from relay.selftest.parts import FAULTS
from relay.spec.labels import counted
from relay.spec.run import Gate, Preflight, Run, Training
from relay.training.step_split import COLUMNS

Outcome = Literal["worked", "failed", "not run", "skipped"]
Told = tuple[Outcome, str]  # what came of it, and the figures or the reason

# The first column of docs/untested.md, without links.
STRATEGIES = "strategies"
ZERO = "`zero1` … `zero3_offload_nvme`, `lightning_zero3`"
PRECISION = "precision"
TIMING = "timing"
USES = "what a run uses"
SPLIT = "what a step's time goes to"
RESUMING = "a kill and a resume"
COMMUNICATION = "communication"
PROBE = "probe, largest model"
CPP = "trained models in C++"
PREFLIGHT = "preflight"
PARTS = (STRATEGIES, ZERO, PRECISION, TIMING, USES, SPLIT, RESUMING, COMMUNICATION, PROBE, CPP, PREFLIGHT)

CPUS = "CPUs"


@dataclass(frozen=True)
class Row:
    """What was tried, and what came of it. `text` has the figures, or the reason; `seconds` are its job's."""

    part: str
    what: str
    outcome: Outcome
    text: str
    seconds: float | None = None


class Records:
    """The records below a folder of results. `words` names runs, settings, gates and preflights by their ids."""

    def __init__(self, results: Path, words: Mapping[str, str]) -> None:
        self.results, self.words = results, words

    def of_skipped(self, line: str) -> Row:
        """A setting that does not fit these devices, in the plan's words."""
        what, _, why = line.removeprefix("skipped: ").partition(": ")
        return Row(STRATEGIES, what, "skipped", why)

    def of_gate(self, gate: Gate, *before: str) -> Row:
        """Whether a strategy computes the same training. `before` are the logs of what the gate waits for."""
        part = PRECISION if gate.computation.precision != "fp32" else STRATEGIES
        part = ZERO if gate.stack.startswith("deepspeed") else part
        place = f"equivalence/gates/{gate.id}"
        verdict = self._read(f"{place}/verdict.json") or self._read(f"{place}/{ALONG}")  # its own job is to follow
        what = f"{self._words(gate)}, {gate.task.name}"
        return self._row(part, what, verdict, _of_verdict, f"gate/{gate.id}", *before)

    def of_run(self, run: Run) -> list[Row]:
        """How fast a run trained, what it used of its node, and what its steps' time went to."""
        log, what = f"segment/{run.id}/step-{run.length.total_steps}", f"{self._words(run)}, a run"
        summary = self._read(f"runs/{run.id}/summary.json")
        if summary is None:  # the job that failed may be an earlier one
            ended = sorted(self.results.glob(f"logs/segment/{run.id}/*.ending.json"))
            log = next((f"segment/{run.id}/{path.name.removesuffix('.ending.json')}" for path in ended), log)
        row = self._row(TIMING, what, summary, _of_summary, log)
        if summary is None or row.outcome == "failed":
            return [row]
        used, split = _of_figures(summary, _uses(run)), _of_figures(summary, COLUMNS)
        return [row, Row(USES, what, *used), Row(SPLIT, what, *split)]

    def of_spot_check(self, setting: str) -> Row:
        """Whether a run computed what one process computes."""
        record = self._read(f"equivalence/spot_checks/{setting}/verdict.json")
        what, log = f"{self.words[setting]}, steps of its run", f"spot_check/{setting}"
        return self._row(STRATEGIES, what, record, _of_spots, log)

    def of_own_part(self, part: str, place: str, pair: Preflight | None) -> Row:
        """A fault that was planted in a pair of processes, or a run that was killed. `place` is their id."""
        record, log = self._read(f"selftest/{part}/{place}.json"), f"selftest/{part}/{place}"
        if pair is None:
            row = self._row(RESUMING, f"{self.words[place]}, killed and resumed", record, _of_own_part, log)
        else:
            nodes = counted(pair.shape.nodes, "node")
            what = f"{FAULTS[part].means} ({pair.shape.backend}, {nodes})"
            row = self._row(COMMUNICATION, what, record, _of_own_part, log)
        return replace(row, seconds=record["seconds"]) if record else row

    def of_probe(self, probe: Training) -> Row:
        """The largest batch that fits."""
        record = self._read(f"probe/{probe.id}.json")
        return self._row(PROBE, self.words[probe.id], record, _of_probe, f"probe/{probe.id}")

    def of_libtorch(self, setting: str) -> Row:
        """A trained model in C++."""
        record = self._read(f"libtorch/{setting}.json")
        return self._row(CPP, self.words[setting], record, _of_libtorch, f"libtorch/{setting}")

    def of_preflight(self, look: Preflight) -> Row:
        """What the nodes have."""
        place = self.results / "preflight" / look.id
        if state(place) == FAILED:
            text = "; ".join(read_json_or(place / "problems.json", []))
            return Row(PREFLIGHT, self.words[look.id], "failed", text)
        facts = self._read(f"preflight/{look.id}/facts.json")
        return self._row(PREFLIGHT, self.words[look.id], facts, _of_facts, f"preflight/{look.id}")

    def _words(self, each: Training) -> str:
        return self.words.get(each.id, each.id)

    def _read(self, path: str) -> Any:
        return read_json_or(self.results / path, {}) or None

    def _row(self, part: str, what: str, record: Any, told_of: Callable[[Any], Told], log: str, *before: str) -> Row:
        """What a record says. Without one its job failed (its `log`), or one that it waits for (`before`)."""
        if record is None:
            return Row(part, what, *self._without(log, *before))
        return Row(part, what, *told_of(record), self._seconds(log))

    def _seconds(self, log: str) -> float | None:
        """A job's seconds, as Snakemake has measured them."""
        try:
            line = (self.results / "benchmarks" / f"{log}.tsv").read_text(encoding="utf-8").splitlines()[1]
            return float(line.split("\t")[0])
        except (OSError, IndexError, ValueError):
            return None

    def _without(self, log: str, *before: str) -> Told:
        for each in (log, *before):
            if ended := ending.read(self.results / "logs" / f"{each}.log"):
                text = " ".join(ended.what.split())
                if each == log:
                    return "failed" if ended.status == ending.FAULT else "not run", f"{text} (results/logs/{log}.log)"
                return "not run", f"it waits for results/logs/{each}.log: {text}"
        return "not run", "what it waits for failed, or the call was interrupted"


# What each kind of record says


def _of_verdict(verdict: Any) -> Told:
    if problems := all_problems(verdict):
        return "failed", "; ".join(problems)
    nearest = max(verdict["parts"], key=lambda each: each["figure"] / each["limit"])
    return "worked", f"{nearest['name']} {nearest['figure']:.1e} of {nearest['limit']:.0e} allowed"


def _of_summary(summary: Any) -> Told:
    if summary["status"] != "done":
        return "failed", summary["reason"]
    speed, median = summary["samples_per_second"], summary["step_seconds_median"]
    return "worked", (
        f"{speed:,.0f} samples/s, {1e3 * median:.2f} ms a step, test accuracy {summary['test_accuracy']:.1%}"
    )


def _of_spots(verdict: Any) -> Told:
    problems = [problem for each in verdict["runs"] for problem in each["problems"]]
    spots = sum(len(each["spots"]) for each in verdict["runs"])
    return "failed" if problems else "worked", "; ".join(problems) or f"{spots} stretches"


def _of_own_part(record: Any) -> Told:
    return "worked" if record["ok"] else "failed", record["told"]


def _of_probe(record: Any) -> Told:
    if record["reason"]:
        return "failed", record["reason"]
    return "worked", f"{record['batch_per_device']} samples per device, limited by {record['limited_by']}"


def _of_libtorch(record: Any) -> Told:
    if record.get("difference") is None:
        return "skipped", record["reason"]
    text = f"largest difference {record['difference']:.1e} of {record['limit']:.0e} allowed"
    return "worked" if record["difference"] <= record["limit"] else "failed", text


def _of_facts(facts: Any) -> Told:
    speeds = [each["bus_gb_per_second"] for each in facts["allreduce"] if each["span"] == "all"]
    parts = [f"all-reduce {max(speeds):.2g} GB/s"] if speeds else []
    parts += [f"{each.severity}: {each.found}" for each in recorded(facts)]
    return "worked", "; ".join(parts)


def _uses(run: Run) -> Mapping[str, str]:
    """The figures that have to be there, by what they are called."""
    figures = {CPUS: "cpu_utilisation"}
    if run.shape.device == "cuda":
        figures |= {"GPUs": "gpu_utilisation", "memory": "peak_gpu_memory_bytes", "power": "gpu_power_watts"}
    return figures


def _of_figures(summary: Any, names: Mapping[str, str]) -> Told:
    """These figures of a summary; failed where none is there, or none of the GPUs. MIG has few."""
    missing = [word for word, name in names.items() if summary.get(name) is None]
    parts = [f"{word} {_figure(name, summary[name])}" for word, name in names.items() if summary.get(name)]
    parts += [f"not measured: {', '.join(missing)}"] if missing else []
    telling = names.keys() - {CPUS} or names.keys()
    return "failed" if telling <= {*missing} else "worked", ", ".join(parts)


def _figure(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e9:.1f} GB"
    return f"{value:.0f} W" if name.endswith("_watts") else f"{value:.1%}"
