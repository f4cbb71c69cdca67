"""The warnings of `warnings.toml`, each with the figure that set it off, and what to do next."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from relay.comparison.candidates import cores
from relay.comparison.request import LEAST_MINUTES, MARGIN, START_SECONDS, request
from relay.comparison.setting_result import SettingResult
from relay.comparison.statistics import LEAST_REPEATS, oddest
from relay.comparison.words import environment
from relay.run_folder.summary import Summary


@dataclass(frozen=True)
class Warned:
    """A warning: its kind (a name of the closed list), the setting, the figure that set it off, and the advice."""

    kind: str
    setting: str
    figure: str
    advice: str


def warnings(settings: Sequence[SettingResult]) -> list[Warned]:
    """All warnings on the settings that have finished, in the order of the list."""
    done = [(each, _facts(each)) for each in settings if each.category == "done" and each.summaries]
    return [
        Warned(kind, each.name, *(" ".join(row[part](**facts).split()) for part in ("figure", "advice")))
        for kind, row in _rows().items()
        for each, facts in done
        if row["when"](**facts)
    ]


@cache
def _rows() -> dict[str, dict[str, Callable[..., Any]]]:
    """Each row of the list, with what computes its parts."""
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    made = environment()
    return {
        kind: {
            "when": made.compile_expression(" ".join(row["when"].split()), undefined_to_none=False),
            **{part: made.from_string(row[part]).render for part in ("figure", "advice")},
        }
        for kind, row in rows.items()
    }


def _facts(each: SettingResult) -> dict[str, Any]:
    """What the list knows of a setting."""
    found = {name: function(each) for name, function in FOUND.items()}
    return {"each": each, "row": each.row, "run": each.run, "found": found, "least_repeats": LEAST_REPEATS}


def _odd(each: SettingResult) -> Mapping[str, Any] | None:
    """The repeat that is farthest from the others, and how many times as fast it is."""
    timed = [repeat for repeat in each.repeats if repeat.speed]
    odd = oddest(each.speeds) if timed else None
    if odd is None:
        return None
    repeat = timed[odd.place]
    hosts = repeat.summary.hosts if repeat.summary else ()
    return {"repeat": repeat.run.repeat + 1, "ratio": odd.ratio, "hosts": hosts}


def _crowded(each: SettingResult) -> Summary | None:
    """The first summary that tells of more threads on a node than it has CPUs."""
    return next((x for x in each.summaries if x.threads_on_node > x.cpus_of_node), None)


def _memory_mb(each: SettingResult) -> int | None:
    """What a node of the jobs needs, a margin included; None where that, or what was asked for, is not known."""
    measured = any(summary.peak_main_memory_bytes for summary in each.summaries)
    asked = each.job and each.job.memory_mb
    return request(each.run, each.summaries, each.job).memory_mb if asked and measured else None


def _minutes(each: SettingResult) -> float:
    """Those of the longest job."""
    held = [job.seconds for summary in each.summaries for job in summary.jobs]
    return max([*held, *(summary.allocated_seconds / summary.attempts for summary in each.summaries)]) / 60


FOUND: Mapping[str, Callable[[SettingResult], Any]] = {
    "odd": _odd,
    "crowded": _crowded,
    "cores": lambda each: cores(each.run),
    "samples_per_process": lambda each: each.run.batch.global_batch_size / each.run.shape.world_size,
    "graphs": lambda each: [summary for summary in each.summaries if summary.replayed_steps is not None],
    "memory_mb": _memory_mb,
    "minutes": _minutes,
    "minutes_wanted": lambda each: max(LEAST_MINUTES, math.ceil(_minutes(each) * (1 + MARGIN) + START_SECONDS / 60)),
}
