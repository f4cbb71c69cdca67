"""What the page tells beside the answer: how long a training takes, what went wrong, warnings of a kind together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from relay.comparison.advice import Warned
from relay.comparison.answer import Answer
from relay.comparison.answer_words import jobs
from relay.comparison.columns import category
from relay.comparison.measured import SettingResult
from relay.comparison.wording import MISSING, number, seconds
from relay.slurm.batch_script import BatchScript

MEBIBYTE = 2**20
TIMES_AS_LONG = (1, 10, 100)  # as the trainings of the comparison


@dataclass(frozen=True)
class Warnings:
    """Warnings of one kind with the same advice: what set each of them off, with its setting's name."""

    kind: str
    advice: str
    found: Sequence[Warned]


def together(warnings: Sequence[Warned]) -> list[Warnings]:
    """The warnings of each kind and advice together, in the order of the first of each."""
    groups: dict[tuple[str, str], list[Warned]] = {}
    for each in warnings:
        groups.setdefault((each.kind, each.advice), []).append(each)
    return [Warnings(kind, advice, found) for (kind, advice), found in groups.items()]


@dataclass(frozen=True)
class HowLong:
    """How long the recommended setting trains.

    `rows` are numbers of epochs, the time of their steps, that of the whole job, and what to ask for. `example` is a
    number of epochs to begin with.
    """

    sentence: str
    rows: Sequence[tuple[str, str, str, str]]
    seconds_per_epoch: float
    example: str


def how_long(answer: Answer) -> HowLong | None:
    """The time of longer trainings at the measured speed; None where nothing is recommended."""
    best = answer.best
    if best is None or best.run.strategy.script:  # nobody knows what a longer script is
        return None
    epoch, length = best.seconds_per_piece, best.run.length
    known = epoch.low is not None and epoch.high is not None
    between = f" (between {seconds(epoch.low or 0)} and {seconds(epoch.high or 0)})" if known else ""
    outside = max((each["allocated_seconds"] - (each["train_seconds"] or 0.0) for each in best.summaries), default=0.0)
    sentence = (
        f"An epoch of {length.steps_per_epoch:,} steps takes {seconds(epoch.value)}{between}. Starts, evaluations and "
        f"saves took another {seconds(max(0.0, outside))} of each training here."
    )
    epochs = [length.epochs * times for times in TIMES_AS_LONG]
    asked = [answer.request_of(times) for times in TIMES_AS_LONG]
    rows = [
        (f"{each:,.10g}", seconds(each * epoch.value), seconds(wanted.expected_seconds), jobs(wanted))
        for each, wanted in zip(epochs, asked, strict=True)
        if wanted
    ]
    return HowLong(sentence, rows, epoch.value, f"{epochs[1]:.10g}")


def pasted(answer: Answer, script: BatchScript) -> str:
    """The lines for a script of one's own: without its name, and without the place of its output.

    They say for which options of the task they are, where there are several.
    """
    own = ("#SBATCH --job-name=", "#SBATCH --output=")
    asks = [line for line in script.block.splitlines() if not line.startswith(own)]
    of = [f"# for {answer.trained}"] if answer.one_of_several else []
    return "\n".join([*of, *asks, *script.to_fill_in])


def all_well(results: Sequence[SettingResult]) -> str:
    """That all was proven and has ended, in a few words; '' where a setting was not run or proven, or is no result."""
    if not results or any(category(each.row) != "done" or each.row["unproven"] for each in results):
        return ""
    runs = sum(len(each.records) for each in results)
    finished = f"all {runs} runs have finished" if runs > 1 else "the run has finished"
    proven = f"all {len(results)} settings were proven" if len(results) > 1 else "the setting was proven"
    return f"{proven}, and {finished}"


@dataclass(frozen=True)
class WentWrong:
    """A setting that was struck out or has failed: its name, its category, why, and its id."""

    name: str
    category: str
    reason: str
    setting: str


def went_wrong(results: Sequence[SettingResult]) -> list[WentWrong]:
    """The settings that were run and are no result."""
    kinds = ("struck out", "failed")
    return [
        WentWrong(each.name, category(each.row), str(each.row["reason"] or ""), str(each.row["setting"]))
        for each in results
        if category(each.row) in kinds
    ]


def coded(text: str) -> Markup:
    """A text with what stands in `backticks` as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def mebibytes(value: int | None) -> str:
    """Bytes as MiB."""
    return MISSING if value is None else number(value / MEBIBYTE)


def whole(value: float) -> str:
    """A number with all its digits and thousands separated, such as '32' or '247,400'."""
    return f"{value:,.10g}"
