"""Every strategy through its gate, and a table of what the gates found: one command instead of many runs."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from relay.base.ending import INTERRUPTED
from relay.base.errors import UserError
from relay.base.files import read_json
from relay.chain.signals import SIGNALS
from relay.equivalence.job import run_gate, run_reference
from relay.equivalence.verdict import Compared, TrialName
from relay.launch.launcher import launch
from relay.run_folder.places import dataset_folder
from relay.run_folder.verdicts import all_problems
from relay.spec.run import Gate, Reference
from relay.spec.strategy_files import chosen
from relay.task.prepared import prepare_data

# The columns, in order, with the trial of the gate and what it compared that each figure is from.
FIGURES: dict[str, tuple[TrialName, Compared]] = {
    "fp64_losses": ("algorithm", "losses"),
    "fp64_parameters": ("algorithm", "parameters"),
    "fp64_outputs": ("algorithm", "outputs"),
    "scaled_parameters": ("scaled", "parameters"),
    "own_losses": ("own precision", "losses"),
    "smooth_update": ("smooth twin", "parameters"),
    "gradient": ("gradient", "parameters"),
    "lossy_update": ("lossy", "parameters"),
}
SHARES = ("parameters", "gradients", "optimizer")


@dataclass
class Proof:
    """Gates, each with its reference, run one after the other on this machine, below a folder of their own.

    A gate that takes longer than `limit_seconds` hangs: it is ended, and after its second try it has failed. Any other
    signal ends this process as well. `root` and `mirror` say where the data is taken from, as in the config's
    `dataset_root` and `dataset_mirror`.
    """

    gates: Sequence[tuple[Gate, Reference]]
    folder: Path
    limit_seconds: float | None = None
    root: Path | None = None
    mirror: str | None = None

    def cells(self, number: int = 1) -> Iterator[dict[str, Any]]:
        """Judge every gate and yield its row. Raises UserError where a reference fails."""
        for gate, reference in self.gates:
            yield {"pass": number, **self._judge(gate, reference)}

    def _judge(self, gate: Gate, reference: Reference) -> dict[str, Any]:
        trained = self._reference(reference)
        place = self.folder / "equivalence" / "gates" / gate.id
        gate.write(place / "gate.json")
        started = time.monotonic()
        for attempt in (1, 2):
            with _output_to(place / "gate.log"), ended_after(self.limit_seconds) as too_late:
                start = partial(_launched, too_late)
                status = run_gate(place / "gate.json", trained, self.folder, place / "verdict.json", attempt, start)
            if status != INTERRUPTED:
                break
        verdict = read_json(place / "verdict.json")
        if verdict is None:
            problem = f"no verdict, status {status}; see {place / 'gate.log'}"
            verdict = {"parts": [], "problems": [problem], "equivalent": False}
        return {**row(gate, verdict), "seconds": round(time.monotonic() - started, 1)}

    def _reference(self, run: Reference) -> Path:
        """The trained reference, which is trained at its first use."""
        dataset = dataset_folder(self.folder, run.dataset)
        if not dataset.is_dir():
            prepare_data(run.task, run.dataset, dataset, root=self.root, mirror=self.mirror)
        place = self.folder / "equivalence" / "references" / run.id
        output = place / "reference.pt"
        if not output.is_file():
            run.write(place / "reference.json")
            with _output_to(place / "reference.log"):
                start = partial(_launched, threading.Event())
                status = run_reference(place / "reference.json", self.folder, output, start=start)
            if status != 0:
                raise UserError(f"reference {run.id}: status {status}; see {place / 'reference.log'}")
        return output


def _launched(too_late: threading.Event, *arguments: Any) -> int:
    """As `launch`; a signal that has ended the processes ends this one too, unless their time was over."""
    status = launch(*arguments)
    if -status in SIGNALS and not too_late.is_set():
        signal.signal(-status, signal.SIG_DFL)
        signal.raise_signal(-status)
    return status


@contextmanager
def ended_after(seconds: float | None) -> Iterator[threading.Event]:
    """Send this process SIGTERM after so many seconds, which the launcher passes on to the processes it waits for.

    Yields what is set by then.
    """
    too_late = threading.Event()

    def end() -> None:
        too_late.set()
        os.kill(os.getpid(), signal.SIGTERM)

    timer = threading.Timer(seconds or 0.0, end)
    if seconds is not None:
        timer.start()
    try:
        yield too_late
    finally:
        timer.cancel()


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send what this process and its children print to a file."""
    kept = [os.dup(number) for number in (1, 2)]
    with path.open("a", encoding="utf-8") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def row(gate: Gate, verdict: dict[str, Any]) -> dict[str, Any]:
    """A verdict as a row of the table: figures by part, the most that any rank holds, the least that one sends."""
    parts = {(part["trial"], part["compared"]): part["figure"] for part in verdict["parts"]}
    shares = verdict.get("bytes_held_share", {})
    sent = verdict.get("bytes_sent_per_step")
    problems = all_problems(verdict)
    return {
        "task": gate.task.name,
        "strategy": gate.strategy.name,
        "options": ", ".join(
            f"{n} {value}" for n, value in chosen(Path(gate.strategy.file), gate.strategy.options).items()
        ),
        "processes": gate.shape.world_size,
        "precision": gate.computation.precision,
        "equivalent": verdict["equivalent"],
        **{column: parts.get(compared) for column, compared in FIGURES.items()},
        **{f"{kind}_share": max(shares[kind]) if shares.get(kind) else None for kind in SHARES},
        "samples_per_rank": " ".join(f"{count:g}" for count in verdict.get("samples_per_rank", [])),
        "bytes_sent_per_step": min(sent) if sent else None,
        "problems": "; ".join(problems),
        "not proven because": verdict.get("unprovable") or "",
    }


def markdown(rows: pd.DataFrame) -> str:
    """The rows as a table in Markdown, without columns in which nothing stands."""
    shown = rows.replace("", None).dropna(axis=1, how="all")
    lines = ["| " + " | ".join(shown.columns) + " |", "|" + " --- |" * len(shown.columns)]
    lines += ["| " + " | ".join(map(_cell, values)) + " |" for values in shown.itertuples(index=False)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if value is None or value != value:  # noqa: PLR0124  # NaN
        return ""
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:g}"
    return "yes" if value is True else "NO" if value is False else str(value)
