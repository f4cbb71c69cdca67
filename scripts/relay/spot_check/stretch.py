"""What a run recorded of a stretch of steps, held against the plain loop: figures, limits, and what is wrong."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import torch

from relay.equivalence.figures import by_kind, distance, most, norm, share
from relay.equivalence.plain import State, Statistics, Tensors
from relay.equivalence.trials import EXACT, GRADIENT_LIMITS, LOSS_LIMITS
from relay.equivalence.verdict import Limited
from relay.spot_check.loop import Computed, Recorded

# How much further than the plain loop's own rounding moves it a run may be from it.
ROUNDING_MARGIN = 10
# Difference of states, relative to what the steps have changed. Below these, and below the gate's LOSS_LIMITS for the
# loss of a step, no rounding is looked for. A compression of gradients to fp16 changes an update by 1e-4 or more.
STATE_LIMITS = {"fp64": EXACT, "fp32": 2e-5, **GRADIENT_LIMITS}
MOST_OF_STEADY = 1e-3  # of what the steps have changed in a tensor; rounding that moves more of it is no rounding error
# Losses of further steps: a unit that rounding switches on or off moved them by 1e-4 in LeNet, another learning rate in
# one step by 1e-2.
FOLLOWING_MARGIN = 100
# Options that round what is sent declare the error of an update of ten steps; a single one's may be that much larger.
LOSSY_MARGIN = 1.5
# The largest limits. Where rounding alone comes near them, the comparison would see nothing, and is left out.
MOST_LOSS, MOST_STATE = 0.05, 0.3
# Of masks that cannot be drawn again: how much further a run may be from the mean of some draws than each of those.
DRAWS, DRAWS_MARGIN = 4, 2.0
MOST_OF_ALL = 0.9  # a lost update differs by 1
PLURAL = ("losses", "buffers", "following losses", "statistics of replicas")  # names of figures
OF_EVALUATIONS = "test "  # what the names of their figures begin with


@dataclass(frozen=True)
class Figure(Limited):
    """One comparison of a spot.

    `rounding` is how far rounding, or other masks of dropout, move the plain loop itself; 0 where it was not measured.
    `where` names a tensor.
    """

    name: str
    figure: float
    limit: float
    rounding: float
    where: str = ""

    @property
    def problem(self) -> str:
        """What is said of it where it has not passed."""
        differ, at = "differ" if self.name in PLURAL else "differs", f"; most in {self.where}" if self.where else ""
        allowed = f"{self.figure:.1e}, allowed is {self.limit:.0e}{at}"
        return f"{self.name} {differ} from one plain process's by {allowed}"


@dataclass
class Findings:
    """What the check of one run found. `unchecked` says why something could not be checked.

    `generation` is the start of the run that was checked.
    """

    run: str
    generation: str | None = None
    spots: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    seconds: float = 0.0
    saving_seconds: float = 0.0
    broken: bool = False  # the check itself has failed: what it had found by then is not all

    def as_dict(self) -> dict[str, Any]:
        """As it is written to verdict.json, with the status that this gives the run."""
        names = [part["name"] for spot in self.spots for part in spot["parts"]]
        whole = not self.broken and any(not name.startswith(OF_EVALUATIONS) for name in names)
        status = "failed" if self.problems else "passed" if whole else "not checked"
        return {**vars(self), "status": status}


def difference(
    recorded: Recorded, plain: Computed, before: State | None = None, *, losses_of: int | None = None
) -> tuple[dict[str, float], str]:
    """How far a training is from the plain loop's, which began with the same parameters; and in which tensor most.

    `before`: the parameters that the other began with, where they are others. `losses_of`: how many losses count.
    Figures of states are L2 norms over all tensors, relative to what the plain loop has changed; of the optimizer
    relative to its state.
    """
    before_of, after_of, off = plain.before.parameters, plain.after.parameters, _updates_apart(recorded, plain, before)
    scale = max(1.0, *map(abs, plain.losses))
    losses = [abs(mine - its) / scale for mine, its in zip(recorded.losses, plain.losses, strict=True)][:losses_of]
    figures = {
        "losses": most(losses),
        "update": share(math.hypot(*off.values()), distance([(after_of[name], p) for name, p in before_of.items()])),
        "buffers": _apart_of_shift(recorded.after.buffers, plain.before.buffers, plain.after.buffers),
        "optimizer": _optimizer(recorded.after.optimizer, plain.after.optimizer),
    }
    return figures, max(off, key=lambda name: off[name], default="")


def _updates_apart(recorded: Recorded, plain: Computed, before: State | None) -> dict[str, float]:
    """By tensor, how far what the steps have changed is from what they have changed in the plain loop."""
    start, before_of, after_of = (before or plain.before).parameters, plain.before.parameters, plain.after.parameters
    return {
        name: norm([(mine.double() - start[name].double()) - (after_of[name].double() - before_of[name].double())])
        for name, mine in recorded.after.parameters.items()
    }


def judged_steady(recorded: Recorded, plain: Computed, other: Computed, precision: str) -> list[Figure]:
    """The update of those tensors that rounding hardly moves, where it moves others; `other`: as below.

    Adam makes whole steps of gradients that are nothing but rounding, such as those of biases before BatchNorm or of
    an attention's keys. Beside them a fault in all others would not be seen.
    """
    off, rounding = _updates_apart(recorded, plain, None), _updates_apart(other, plain, other.before)
    moved = {name: distance([(plain.after.parameters[name], p)]) for name, p in plain.before.parameters.items()}
    steady = [name for name in moved if rounding[name] <= MOST_OF_STEADY * moved[name]]
    if not steady or len(steady) == len(moved):
        return []
    figure, own, all_moved = (math.hypot(*(of[name] for name in steady)) for of in (off, rounding, moved))
    figure, own = share(figure, all_moved), share(own, all_moved)
    limit = min(max(STATE_LIMITS[precision], ROUNDING_MARGIN * own), MOST_STATE)
    return [Figure("steady update", figure, limit, own, max(steady, key=lambda name: off[name]))]


def _optimizer(mine: Tensors, plain: Tensors) -> float:
    """The largest relative difference of one kind of the optimizer's state, such as the momentum."""
    if not plain.keys() <= mine.keys():
        return math.inf  # the checkpoint has not all
    return most(
        share(distance([(mine[name], plain[name]) for name in names]), norm(plain[name] for name in names))
        for names in by_kind(plain).values()
    )


def unlike(one: Statistics, other: Statistics) -> bool:
    """Whether any buffer differs."""
    return any(not torch.equal(one[name], other[name]) for name in one)


def differing_statistics(recorded: Recorded) -> bool:
    """Whether replicas have others than the first one."""
    return any(unlike(mine, recorded.statistics[0]) for mine in recorded.statistics)


def off(recorded: Recorded, plain: Computed) -> float:
    """How far the plain loop is from the run: losses, and statistics of replicas."""
    apart, _ = difference(recorded, plain)
    return apart["losses"] + statistics_apart(recorded, plain)  # a sum: losses that round alike decide nothing


def statistics_apart(recorded: Recorded, plain: Computed) -> float:
    """How far a replica's statistics are from the plain loop's; of those that are not the first one's the farthest."""
    of_replicas = zip(recorded.statistics, plain.began, plain.statistics, strict=False)
    return most(_apart_of_shift(mine, *its) for mine, *its in of_replicas if unlike(mine, recorded.statistics[0]))


def _apart_of_shift(mine: Statistics, before: Statistics, after: Statistics) -> float:
    """How far buffers are from what they are `after`, relative to how far that has moved; L2 norms."""
    names = [name for name, buffer in after.items() if buffer.is_floating_point()]
    return share(*(distance([(one[name], after[name]) for name in names]) for one in (mine, before)))


def judged(
    precision: str, apart: Mapping[str, float], where: str, rounding: Mapping[str, float], lossy: Mapping[str, float]
) -> tuple[list[Figure], list[str]]:
    """The figures of a spot with their limits, and notes on what cannot be compared.

    `apart` and `where` are what `difference` gives; `rounding` is how far rounding alone moves the plain loop. `lossy`
    are the declared options that round what is sent, with the relative error that each may cause in an update.
    """
    figures, notes = [], []
    for name in ("losses", "update", "buffers", "optimizer"):
        own, limits, ceiling = rounding[name], STATE_LIMITS, MOST_STATE
        if name == "losses":
            limits, ceiling = LOSS_LIMITS, MOST_LOSS
        floor = limits[precision]
        if name in ("update", "optimizer"):
            declared = min(LOSSY_MARGIN * sum(lossy.values()), MOST_OF_ALL)
            floor, ceiling = max(floor, declared), max(ceiling, declared)
        if not own <= ceiling / 3:
            notes.append(f"{name}: rounding alone moves the plain loop by {own:.0e}, so that nothing would be seen")
            continue
        limit = min(max(floor, ROUNDING_MARGIN * own), ceiling)
        figures.append(Figure(name, apart[name], limit, own, where if name == "update" else ""))
    return figures, notes


def judged_following(recorded: list[float], plain: Computed, other: Computed, precision: str) -> list[Figure]:
    """The losses of the steps that follow a stretch; `other` is the plain loop moved by rounding alone.

    Only as many steps count as rounding leaves comparable.
    """
    scale = max([1.0, *map(abs, plain.followed)])
    pairs = [(abs(its - mine) / scale, abs(its - moved) / scale)
             for mine, its, moved in zip(recorded, plain.followed, other.followed, strict=True)]  # fmt: skip
    seen = list(takewhile(lambda pair: pair[1] <= MOST_LOSS / 3, pairs))
    if not seen:
        return []
    rounding = max(own for _, own in seen)
    limit = min(max(FOLLOWING_MARGIN * LOSS_LIMITS[precision], ROUNDING_MARGIN * rounding), MOST_LOSS)
    return [Figure("following losses", most(off for off, _ in seen), limit, rounding)]


def judged_of_draws(recorded: Recorded, draws: list[Computed], precision: str) -> tuple[list[Figure], list[str]]:
    """The same where the run's masks cannot be drawn again: held against some draws, as far apart as these are."""
    losses = torch.tensor([draw.losses for draw in draws], dtype=torch.float64)
    spread = float(losses.std(0).max()) if len(draws) > 1 else 0.0
    off = float((torch.tensor(recorded.losses, dtype=torch.float64) - losses.mean(0)).abs().max())
    figures = [Figure("losses", off, max(LOSS_LIMITS[precision], 8 * spread), spread)]
    steps = [_moved(draw.before, draw.after) for draw in draws]
    own = _moved(draws[0].before, recorded.after)
    apart = [_off(step, [*steps[:place], *steps[place + 1 :]]) for place, step in enumerate(steps)]
    limit = DRAWS_MARGIN * max(apart)
    if limit > 2 * MOST_OF_ALL:
        return figures, ["update: the masks of dropout alone change it so much that nothing would be seen"]
    figures.append(Figure("update", _off(own, steps), min(limit, MOST_OF_ALL), max(apart)))
    return figures, []


def _moved(before: State, after: State) -> torch.Tensor:
    """What training has changed, as one vector."""
    return torch.cat([(after.parameters[name] - p).flatten().double() for name, p in before.parameters.items()])


def _off(step: torch.Tensor, others: list[torch.Tensor]) -> float:
    mean = torch.stack(others).mean(0)
    return float((step - mean).norm() / mean.norm())
