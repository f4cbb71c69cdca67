"""The summary of a command's run: what was observed of it in all of its jobs, put together. Needs no torch."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

from relay.run_folder.attempts import Records
from relay.run_folder.summary import Summary
from relay.spec.run import Run
from relay.training.summary import Attempts, of_jobs, quantiles, recorded_of, remarks, thinned


def summarise(run: Run, work: Path) -> Summary:
    """The summary of a command that has ended. Raises UserError where its records are gone."""
    chain, attempts = recorded_of(run, work)
    trained_by = [records for _, records in attempts if records]
    counted = _counted(run, trained_by)
    # Speeds that a command prints are counted, not steps: all but the first are timed.
    first_timed = run.length.warmup_steps if of_steps(run) else -math.inf
    timed = [block for start, blocks in counted for block in blocks if block[0] >= start + first_timed]
    seconds = math.fsum(b[2] for b in timed)
    trained = [math.fsum(block[2] for block in blocks) for _, blocks in counted]
    losses, accuracies = _values(trained_by, "loss"), _values(trained_by, "accuracy")
    wrong = next((value for _, value in losses if not math.isfinite(value)), None)
    doubts = dict.fromkeys(str(records.end.get("doubt") or "") for records in trained_by)
    refused = "" if wrong is None else f"the loss that the command printed is {wrong}: the training diverged"
    figures = of_jobs(run, work, chain, _from_first_step(attempts), trained)
    if run.shape.device == "cuda":  # of a command that is not known itself, as the GPU's driver tells
        figures["peak_memory_bytes"] = figures.get("peak_gpu_memory_bytes")
    return Summary(
        **figures,
        status="failed" if refused else "done",
        reason=refused or "; ".join(filter(None, [remarks(run, len(timed), chain, attempts), *doubts])),
        samples_per_second=math.fsum(b[4] for b in timed) / seconds if seconds else None,
        measured_steps=int(sum(b[1] - b[0] for b in timed)) if of_steps(run) else 0,
        **quantiles(timed if of_steps(run) else []),
        test_accuracy=accuracies[-1][1] if accuracies else None,
        train_loss=losses[-1][1] if losses and not refused else None,
        evaluations=(),
        losses=thinned([pair for pair in losses if math.isfinite(pair[1])]),
        steps_reached=max((line.get("step", 0) for records in trained_by for line in records.lines), default=0),
    )


def of_steps(run: Run) -> bool:
    """Whether the blocks are those of steps: not of speeds that are printed, nor of whole runs."""
    script = run.strategy.script
    return script is not None and script.counts != "runs" and "samples_per_second" not in script.read


def _counted(run: Run, trained_by: list[Records]) -> list[tuple[int, list[list[float]]]]:
    """The first step and the blocks of each attempt that left records, without the steps that a later one did again."""
    counted: list[tuple[int, list[list[float]]]] = []
    again = of_steps(run)  # else nobody knows which steps were done again
    limit = math.inf
    for records in reversed(trained_by):
        blocks = records.all_of("blocks")
        start = int(blocks[0][0]) if blocks else 0
        counted.append((start, [block for block in blocks if block[1] <= limit]))
        limit = min(limit, start) if blocks and again else limit
    if counted and run.strategy.script and run.strategy.script.counts == "runs":
        _add_attempts(counted[0][1], trained_by[:-1])
    return counted[::-1]


def _add_attempts(last: list[list[float]], earlier: list[Records]) -> None:
    """Add to the time of a whole run that of its earlier attempts which have asked to be started again."""
    more = math.fsum(each.end.get("seconds", 0.0) for each in earlier if each.end.get("asks_again"))
    if last:
        last[-1] = [*last[-1][:2], last[-1][2] + more, *last[-1][3:]]


def _values(trained_by: list[Records], name: str) -> list[tuple[int, float]]:
    """What a pattern has found, each with the step at which it was written down, or its number."""
    lines = [line for records in trained_by for line in records.lines if line.get("read")]
    pairs = [(int(line.get("step") or 0), value) for line in lines for value in line["read"].get(name, [])]
    rising = all(one[0] < other[0] for one, other in pairwise(pairs))
    return pairs if rising else [(number, value) for number, (_, value) in enumerate(pairs, 1)]


def _from_first_step(attempts: Attempts) -> Attempts:
    """The same, where the first line is told at the first step: what comes before that is loading."""
    moved = []
    for attempt, records in attempts:
        first_at = next((line["first_at"] for line in records.lines if line.get("first_at")), None)
        lines = [records.lines[0] | {"time": first_at}, *records.lines[1:]] if first_at else records.lines
        moved.append((attempt, Records(lines)))
    return moved
