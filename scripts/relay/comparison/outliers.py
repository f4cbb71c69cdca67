"""Which settings' results are far from those of the others that train the same: a warning, no verdict.

Settings are peers where they train the same task with the same global batch and learning rate for the same epochs.
A setting is held against the median of its peers. It is an outlier beyond `SPREADS` times their spread between
repeats, and beyond a floor: within it, differences of rounding move a training that is all right. Scripts are compared
by the losses that they print.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev, variance

from relay.comparison.inputs import Record
from relay.comparison.statistics import t_quantile
from relay.comparison.wording import number, percent
from relay.spec.labels import options_text

SPREADS = 5.0  # standard deviations between repeats
# With few repeats the spread itself is uncertain: Student's t at this level where that is more than `SPREADS`.
CONFIDENCE = 0.999
LAST_PART = 4  # the last quarter of a curve: a single printed loss is that of one batch
APART = 0.1  # of the loss
LOSS_SPREADS = 3.0  # of the repeats' own spread


@dataclass(frozen=True)
class Scale:
    """How a figure is compared: `floor` where the peers' spread is known, `alone` where each has one repeat."""

    name: str
    floor: float
    alone: float
    logarithmic: bool = False

    def of(self, value: float) -> float:
        """The value on the scale on which it is compared."""
        return math.log(max(value, 1e-300)) if self.logarithmic else value

    def word(self, value: float) -> str:
        """The value as people read it."""
        return f"{value:.3g}" if self.logarithmic else percent(value)


ACCURACY = Scale("test_accuracy", floor=0.01, alone=0.1)
# For tasks without classes. In logarithms: a tenth, and a factor of two.
LOSS = Scale("test_loss", floor=math.log(1.1), alone=math.log(2), logarithmic=True)


def outliers(groups: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """A warning for each setting, by its id, whose mean result is far from its peers'.

    `groups` has the finished repeats of the settings that may be compared, by the setting's id.
    """
    return {setting: warning for peers in _peers(groups) for setting, warning in _among(peers)}


def _peers(groups: Mapping[str, Sequence[Record]]) -> list[dict[str, Sequence[Record]]]:
    """The settings that train the same, together."""
    alike: dict[str, dict[str, Sequence[Record]]] = {}
    for setting, group in groups.items():
        run = group[0].run
        same = (run.task, run.dataset, run.batch.global_batch_size, run.length.epochs)
        alike.setdefault(repr(same), {})[setting] = group  # the task has the scaled learning rate
    return list(alike.values())


def _among(peers: Mapping[str, Sequence[Record]]) -> Iterator[tuple[str, str]]:
    """The outliers among settings that train the same."""
    measured = next(iter(peers.values()))[0].run.task.metrics
    scale = ACCURACY if "accuracy" in measured else LOSS
    values = {setting: _values(group, scale) for setting, group in peers.items()}
    values = {setting: figures for setting, figures in values.items() if figures}
    for setting, own in values.items():
        others = [figures for other, figures in values.items() if other != setting]
        if not others:
            continue
        middle = median(fmean(map(scale.of, figures)) for figures in others)
        distance = abs(fmean(map(scale.of, own)) - middle)
        if not distance <= _allowed(others, scale):  # also where it is no number
            yield setting, _warning(own, others, scale)


def _values(group: Sequence[Record], scale: Scale) -> list[float]:
    figures = [record.summary[scale.name] for record in group if record.summary]
    return [float(value) for value in figures if value is not None]


def _allowed(others: Sequence[Sequence[float]], scale: Scale) -> float:
    """How far a setting may be from the median of the others."""
    repeated = [[scale.of(value) for value in figures] for figures in others if len(figures) > 1]
    freedom = sum(len(figures) - 1 for figures in repeated)
    if not freedom:
        return scale.alone
    pooled = math.sqrt(math.fsum((len(figures) - 1) * variance(figures) for figures in repeated) / freedom)
    return max(scale.floor, max(SPREADS, t_quantile((1 + CONFIDENCE) / 2, freedom)) * pooled)


def _warning(own: Sequence[float], others: Sequence[Sequence[float]], scale: Scale) -> str:
    mine, theirs = scale.word(fmean(own)), scale.word(median(fmean(figures) for figures in others))
    which = "the other setting" if len(others) == 1 else f"the {len(others)} others"
    return (
        f"its {scale.name.replace('_', ' ')}, {mine}, is far from that of {which} that train the same ({theirs}): "
        "look at its losses before you use it"
    )


def differing(groups: Mapping[str, Sequence[Record]]) -> dict[str, str]:
    """A warning for each setting, by id, whose last losses are others than most settings' of its global batch.

    `groups` has the repeats of the settings. Nothing is said of strategies, which are proven.
    """
    alike: dict[tuple[str, int, str], dict[str, list[float]]] = {}
    for setting, group in groups.items():
        run = group[0].run
        if not run.strategy.script or run.task.unit == "runs":  # of which nobody has told the global batch
            continue
        if ends := [end for record in group if (end := _end(record)) is not None]:
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
        if abs(mean - usual) > max(APART * abs(usual), LOSS_SPREADS * spread)
    }
