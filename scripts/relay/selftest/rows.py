"""What the records of a self-test say, as rows of its page. Each row belongs to a row of docs/untested.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from relay.base import ending
from relay.base.files import read_json_or
from relay.equivalence.verdict import ALONG, all_problems
from relay.preflight.page import FAILED, state
from relay.selftest.parts import FAULTS
from relay.spec.run import Gate, Preflight, Run, Training
from relay.training.step_split import COLUMNS

Outcome = Literal["worked", "failed", "not run", "skipped"]

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
        row = Row(part, f"{self._words(gate)}, {gate.task.name}", "worked", "")
        place = f"equivalence/gates/{gate.id}"
        verdict = self._read(f"{place}/verdict.json") or self._read(f"{place}/{ALONG}")  # its own job is to follow
        if verdict is None:
            return self._without(row, f"gate/{gate.id}", *before)
        if problems := all_problems(verdict):
            return self._timed(replace(row, outcome="failed", text="; ".join(problems)), f"gate/{gate.id}")
        nearest = max(verdict["parts"], key=lambda each: each["figure"] / each["limit"])
        text = f"{nearest['name']} {nearest['figure']:.1e} of {nearest['limit']:.0e} allowed"
        return self._timed(replace(row, text=text), f"gate/{gate.id}")

    def of_run(self, run: Run) -> Iterable[Row]:
        """How fast a run trained, what it used of its node, and what its steps' time went to."""
        log = f"segment/{run.id}/step-{run.length.total_steps}"
        row = Row(TIMING, f"{self._words(run)}, a run", "worked", "")
        summary = self._read(f"runs/{run.id}/summary.json")
        if summary is None or summary["status"] != "done":
            if summary is not None:
                return [replace(row, outcome="failed", text=summary["reason"])]
            ended = sorted(self.results.glob(f"logs/segment/{run.id}/*.ending.json"))
            jobs = (f"segment/{run.id}/{path.name.removesuffix('.ending.json')}" for path in ended)
            return [self._without(row, next(jobs, log))]  # the job that failed, which may be an earlier one
        speed, median = summary["samples_per_second"], summary["step_seconds_median"]
        text = f"{speed:,.0f} samples/s, {1e3 * median:.2f} ms a step, test accuracy {summary['test_accuracy']:.1%}"
        return [
            self._timed(replace(row, text=text), log),
            _with_figures(replace(row, part=USES), summary, _uses(run)),
            _with_figures(replace(row, part=SPLIT), summary, COLUMNS),
        ]

    def of_spot_check(self, setting: str, *before: str) -> Row:
        """Whether a run computed what one process computes."""
        row, log = Row(STRATEGIES, f"{self.words[setting]}, steps of its run", "worked", ""), f"spot_check/{setting}"
        verdict = self._read(f"equivalence/spot_checks/{setting}/verdict.json")
        if verdict is None:
            return self._without(row, log, *before)
        problems = [problem for each in verdict["runs"] for problem in each["problems"]]
        spots = sum(len(each["spots"]) for each in verdict["runs"])
        row = replace(row, outcome="failed" if problems else "worked", text="; ".join(problems) or f"{spots} stretches")
        return self._timed(row, log)

    def of_own_part(self, part: str, place: str, pair: Preflight | None) -> Row:
        """A fault that was planted in a pair of processes, or a run that was killed. `place` is their id."""
        if pair is None:
            row = Row(RESUMING, f"{self.words[place]}, killed and resumed", "worked", "")
        else:
            nodes = f"{pair.shape.nodes} node{'s' * (pair.shape.nodes > 1)}"
            row = Row(COMMUNICATION, f"{FAULTS[part].means} ({pair.shape.backend}, {nodes})", "worked", "")
        record = self._read(f"selftest/{part}/{place}.json")
        if record is None:
            return self._without(row, f"selftest/{part}/{place}")
        outcome: Outcome = "worked" if record["ok"] else "failed"
        return replace(row, outcome=outcome, text=record["told"], seconds=record["seconds"])

    def of_probe(self, probe: Training) -> Row:
        """The largest batch that fits."""
        row = Row(PROBE, self.words[probe.id], "worked", "")
        record = self._read(f"probe/{probe.id}.json")
        if record is None:
            return self._without(row, f"probe/{probe.id}")
        text = record["reason"] or f"{record['batch_per_device']} samples per device, limited by {record['limited_by']}"
        row = replace(row, outcome="failed" if record["reason"] else "worked", text=text)
        return self._timed(row, f"probe/{probe.id}")

    def of_libtorch(self, setting: str) -> Row:
        """A trained model in C++."""
        row, log = Row(CPP, self.words[setting], "worked", ""), f"libtorch/{setting}"
        record = self._read(f"libtorch/{setting}.json")
        if record is None:
            return self._without(row, log)
        if record.get("difference") is None:
            return self._timed(replace(row, outcome="skipped", text=record["reason"]), log)
        text = f"largest difference {record['difference']:.1e} of {record['limit']:.0e} allowed"
        outcome: Outcome = "worked" if record["difference"] <= record["limit"] else "failed"
        return self._timed(replace(row, outcome=outcome, text=text), log)

    def of_preflight(self, look: Preflight) -> Row:
        """What the nodes have."""
        row, place = Row(PREFLIGHT, self.words[look.id], "worked", ""), self.results / "preflight" / look.id
        if state(place) == FAILED:
            return replace(row, outcome="failed", text="; ".join(read_json_or(place / "problems.json", [])))
        facts = self._read(f"preflight/{look.id}/facts.json")
        if facts is None:
            return self._without(row, f"preflight/{look.id}")
        speeds = [each["bus_gb_per_second"] for each in facts["allreduce"] if each["span"] == "all"]
        parts = [f"all-reduce {max(speeds):.2g} GB/s"] if speeds else []
        parts += [f"{each['severity']}: {each['found']}" for each in facts["findings"] if not each["ok"]]
        return self._timed(replace(row, text="; ".join(parts)), f"preflight/{look.id}")

    def _words(self, each: Training) -> str:
        return self.words.get(each.id, each.id)

    def _read(self, path: str) -> dict[str, Any] | None:
        return read_json_or(self.results / path, {}) or None

    def _timed(self, row: Row, log: str) -> Row:
        """The row with its job's seconds, as Snakemake has measured them."""
        try:
            line = (self.results / "benchmarks" / f"{log}.tsv").read_text(encoding="utf-8").splitlines()[1]
            return replace(row, seconds=float(line.split("\t")[0]))
        except (OSError, IndexError, ValueError):
            return row

    def _without(self, row: Row, log: str, *before: str) -> Row:
        """A row without a record: its job failed, or one that it waits for did."""
        for each in (log, *before):
            if ended := ending.read(self.results / "logs" / f"{each}.log"):
                text = " ".join(ended.what.split())
                if each == log:
                    outcome: Outcome = "failed" if ended.status == ending.FAULT else "not run"
                    return replace(row, outcome=outcome, text=f"{text} (results/logs/{log}.log)")
                return replace(row, outcome="not run", text=f"it waits for results/logs/{each}.log: {text}")
        return replace(row, outcome="not run", text="what it waits for failed, or the call was interrupted")


def _uses(run: Run) -> Mapping[str, str]:
    """The figures that have to be there, by what they are called."""
    figures = {CPUS: "cpu_utilisation"}
    if run.shape.device == "cuda":
        figures |= {"GPUs": "gpu_utilisation", "memory": "peak_gpu_memory_bytes", "power": "gpu_power_watts"}
    return figures


def _with_figures(row: Row, summary: Mapping[str, Any], names: Mapping[str, str]) -> Row:
    """The row with these figures of a summary; failed where none is there, or none of the GPUs. MIG has few."""
    missing = [word for word, name in names.items() if summary.get(name) is None]
    parts = [f"{word} {_figure(name, summary[name])}" for word, name in names.items() if summary.get(name)]
    parts += [f"not measured: {', '.join(missing)}"] if missing else []
    telling = names.keys() - {CPUS} or names.keys()
    return replace(row, outcome="failed" if telling <= {*missing} else "worked", text=", ".join(parts))


def _figure(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / 1e9:.1f} GB"
    return f"{value:.0f} W" if name.endswith("_watts") else f"{value:.1%}"
