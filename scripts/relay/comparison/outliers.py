"""Which settings' results are far outside those of the others that train the same: a warning, no verdict.

Settings are peers where they train the same task with the same global batch and learning rate for the same epochs.
A setting is held against the median of its peers. It is an outlier beyond `SPREADS` times their spread between
repeats, and beyond a floor: within it, differences of rounding move a training that is all right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance

from relay.comparison.inputs import Record
from relay.comparison.statistics import t_quantile

SPREADS = 5.0  # standard deviations between repeats
# With few repeats the spread itself is uncertain: Student's t at this level where that is more than `SPREADS`.
CONFIDENCE = 0.999


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
        return f"{value:.3g}" if self.logarithmic else f"{100 * value:.1f} %"


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
    values = {setting: known for setting, known in values.items() if known}
    for setting, own in values.items():
        others = [known for other, known in values.items() if other != setting]
        if not others:
            continue
        middle = median(fmean(map(scale.of, known)) for known in others)
        distance = abs(fmean(map(scale.of, own)) - middle)
        if not distance <= _allowed(others, scale):  # also where it is no number
            yield setting, _warning(own, others, scale)


def _values(group: Sequence[Record], scale: Scale) -> list[float]:
    found = [record.summary[scale.name] for record in group if record.summary]
    return [float(value) for value in found if value is not None]


def _allowed(others: Sequence[Sequence[float]], scale: Scale) -> float:
    """How far a setting may be from the median of the others."""
    repeated = [[scale.of(value) for value in known] for known in others if len(known) > 1]
    freedom = sum(len(known) - 1 for known in repeated)
    if not freedom:
        return scale.alone
    pooled = math.sqrt(math.fsum((len(known) - 1) * variance(known) for known in repeated) / freedom)
    return max(scale.floor, max(SPREADS, t_quantile((1 + CONFIDENCE) / 2, freedom)) * pooled)


def _warning(own: Sequence[float], others: Sequence[Sequence[float]], scale: Scale) -> str:
    mine, theirs = scale.word(fmean(own)), scale.word(median(fmean(known) for known in others))
    which = "the other setting" if len(others) == 1 else f"the {len(others)} others"
    return (
        f"its {scale.name.replace('_', ' ')}, {mine}, is far from that of {which} that train the same ({theirs}): "
        "look at its losses before you use it"
    )
