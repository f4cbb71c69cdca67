"""Losses that scripts print: where they differ between settings of one global batch, these may not train the same."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from relay.comparison.inputs import Record
from relay.comparison.wording import number
from relay.spec.labels import options_text

LAST_PART = 4  # the last quarter of a curve: a single printed loss is that of one batch
APART = 0.1  # of the loss
SPREADS = 3.0  # of the repeats' own spread


def differing(groups: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """A warning for each setting, by id, whose last losses are others than most settings' of its global batch.

    `groups` has the repeats of the settings. Nothing is said of strategies, which are proven.
    """
    alike: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for setting, group in groups.items():
        run = group[0].run
        known = run.task.unit != "runs"  # else nobody has told the global batch
        if run.strategy.script and known and (ends := [end for record in group if (end := _end(record)) is not None]):
            same = run.task.name, run.batch.global_batch_size, options_text(run.strategy.options) or ""
            alike.setdefault(same, {})[setting] = ends
    return {setting: text for ends in alike.values() for setting, text in _differing(ends).items()}


def _end(record: Record) -> float | None:
    """The mean of the last losses of a run; None without any."""
    values: list[float] = (record.summary or {}).get("losses", {}).get("values", [])
    return fmean(values[-math.ceil(len(values) / LAST_PART) :]) if values else None


def _differing(ends: Mapping[str, Sequence[float]]) -> dict[str, str]:
    means = {setting: fmean(values) for setting, values in ends.items()}
    usual = sorted(means.values())[(len(means) - 1) // 2]
    spread = max(pstdev(values) for values in ends.values())
    return {
        setting: f"its last losses are about {number(mean)}, those of others with the same global batch "
        f"{number(usual)}: they may not train the same"
        for setting, mean in means.items()
        if abs(mean - usual) > max(APART * abs(usual), SPREADS * spread)
    }
