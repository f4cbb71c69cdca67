"""What a training with evaluations and a checkpoint was, against its plain repetition: figures and problems."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

from relay.equivalence.course import Observed
from relay.equivalence.figures import apart, difference, most, scaled, scales, size
from relay.equivalence.journey import Objects
from relay.equivalence.plain import State, Tensors
from relay.equivalence.repeated import Repeated
from relay.equivalence.trials import AFTER, BEFORE, EXACT
from relay.equivalence.verdict import Compared, Part, TrialName, Verdict
from relay.task.draws import Drawn


def compare(
    verdict: Verdict, repeated: Repeated, observed: Objects, trained: Tensors, loaded: Tensors, alone: State | str
) -> None:
    """All figures. `trained` is the first object's model, `loaded` the second one's right after loading; `alone` is
    what one plain process loads from the last checkpoint, or why it cannot."""
    firsts, seconds = zip(*observed, strict=True)
    _losses(verdict, "as trained", firsts, repeated, 0, "with dropout and BatchNorm at work")
    _tensors(verdict, "as trained", "parameters", trained, repeated.end, "after these steps")
    _statistics(verdict, repeated, firsts)
    _outputs(verdict, "as trained", firsts, repeated, (1, BEFORE))
    _tensors(verdict, "between steps", "parameters", loaded, repeated.middle, "after a checkpoint was loaded")
    _outputs(verdict, "between steps", seconds, repeated, (BEFORE, BEFORE + AFTER))
    _losses(verdict, "between steps", seconds, repeated, BEFORE, "after a checkpoint was loaded")
    if isinstance(alone, str):
        verdict.problems.append(f"between steps: one plain process cannot load the checkpoint: {alone}")
    else:
        when = "of a checkpoint in one plain process"
        _tensors(verdict, "between steps", "state", alone.model | alone.optimizer, repeated.end, when)


def apart_by_rounding(repeated: Repeated) -> dict[Compared, float]:
    """How far each kind is from that of a repetition whose parameters begin one unit in the last place away."""
    other = repeated.moved()
    other.train()
    outputs = [
        apart(moved, its)
        for after, slices in repeated.outputs.items()
        for slice_outputs, moved_outputs in zip(slices, other.outputs[after], strict=True)
        for its, moved in zip(slice_outputs, moved_outputs, strict=True)
    ]
    return {
        "losses": scaled(*(torch.tensor(each.losses, dtype=torch.float64) for each in (other, repeated))),
        "outputs": most(outputs),
        **_of_states((other.middle, repeated.middle), (other.end, repeated.end)),
    }


def moved_by_training(repeated: Repeated) -> dict[Compared, float]:
    """How far the training itself moves each kind of figures, from its begin or its first step to its end."""
    last = [sets[0] for sets in repeated.outputs[BEFORE + AFTER]]
    return {
        "losses": max(repeated.losses) - min(repeated.losses),
        "outputs": most(apart(first[0], its) for first, its in zip(repeated.outputs[1], last, strict=True)),
        # Of the optimizer nothing: some have no state yet at the begin.
        **_of_states((replace(repeated.begin, optimizer={}), replace(repeated.end, optimizer={}))),
    }


def _of_states(*pairs: tuple[State, State]) -> dict[Compared, float]:
    """The largest differences of pairs of states; of the optimizer where both have one."""
    model, buffers, optimizer = (
        most(
            figure
            for mine, its in pairs
            for figure in _apart(getattr(mine, kind), getattr(its, kind), statistics=its.buffers).values()
        )
        for kind in ("model", "buffers", "optimizer")
    )
    return {"parameters": model, "statistics": buffers, "state": most((model, optimizer))}


def _apart(mine: Tensors, expected: Tensors, statistics: Tensors) -> dict[str, float]:
    """The differences by name; statistics are compared relative to their largest value, where that is more than 1."""
    relative_to = scales(expected) | {name: max(1.0, size(tensor)) for name, tensor in statistics.items()}
    return {name: difference(mine[name], t) / relative_to[name] for name, t in expected.items()}


def _losses(verdict: Verdict, trial: TrialName, seen: Sequence[Observed], repeated: Repeated, begins: int,
            when: str) -> None:  # fmt: skip
    expected = torch.tensor(repeated.losses[begins:], dtype=torch.float64)
    mine = curve(seen)
    what = f"largest loss difference in {len(expected)} steps {when}"
    verdict.add(Part(trial, "losses", what, scaled(mine, expected), EXACT))
    for step, figure in enumerate((mine - expected).abs().tolist(), begins + 1):
        if not figure <= EXACT:
            verdict.where = verdict.where or f"first differs at step {step} in the loss ({figure:.1e}), {when}"


def curve(seen: Sequence[Observed]) -> torch.Tensor:
    """The mean losses (steps,) of what all ranks have seen."""
    return torch.tensor([each.losses for each in seen if each.replica.reports], dtype=torch.float64).mean(0)


def _tensors(verdict: Verdict, trial: TrialName, compared: Compared, tensors: Tensors, state: State, when: str) -> None:
    """Compare tensors by name with those of a state; for "state" the optimizer's, too."""
    expected = state.model | (state.optimizer if compared == "state" else {})
    if missing := sorted(set(expected) - set(tensors)):
        verdict.problems.append(f"{trial}: {missing[0]} is missing {when} ({len(missing)} of {len(expected)} are)")
        return
    figures = _apart(tensors, expected, state.buffers)
    worst = _worst(figures)
    verdict.add(Part(trial, compared, f"largest difference {when}, in {worst}", figures[worst], EXACT))
    for name, figure in figures.items():
        if not figure <= EXACT:
            verdict.where = verdict.where or f"first differs {when}, in {name} ({figure:.1e})"


def _worst(figures: Mapping[Any, float]) -> Any:
    """The name with the largest figure; one that is no number is the largest."""
    return max(figures, key=lambda name: (figures[name] != figures[name], figures[name]))


def _statistics(verdict: Verdict, repeated: Repeated, seen: Sequence[Observed]) -> None:
    """Compare every rank's buffers with its replica's."""
    if figures := statistics_apart(repeated, seen):
        worst = _worst(figures)
        what = f"largest difference of a replica's statistics, in {worst}"
        verdict.add(Part("as trained", "statistics", what, figures[worst], EXACT))


def statistics_apart(repeated: Repeated, seen: Sequence[Observed]) -> dict[str, float]:
    """How far each buffer is from its replica's, on the rank where it is farthest away."""
    figures: dict[str, float] = {}
    for each in seen:
        expected = repeated.statistics_of(each.replica.index)
        for name in (name for name in expected if name in each.buffers):
            figures[name] = most((figures.get(name, 0.0), scaled(each.buffers[name], expected[name])))
    return figures


def _outputs(
    verdict: Verdict, trial: TrialName, seen: Sequence[Observed], repeated: Repeated, times: Sequence[int]
) -> None:
    """Compare what each replica predicts after these steps."""
    figures: dict[int, float] = {}
    for after in times:
        of = {each.replica.index: each.outputs[after] for each in seen if after in each.outputs}
        figures[after] = max(
            min(apart(of[index], one) for one in candidates) if index in of else float("inf")
            for index, candidates in enumerate(repeated.outputs[after])
        )
    worst = _worst(figures)
    what = f"largest difference of what it predicts after step {worst}"
    verdict.add(Part(trial, "outputs", what, figures[worst], EXACT))


def compared_draws(repeated: Repeated, observed: Objects) -> list[str]:
    """What is wrong with the random numbers that were drawn; at most one line.

    Of each draw the gate replaces the numbers, so that a wrong one shows in no figure.
    """
    # Ranks that share a replica may each draw for a part of it, or all of them alike.
    counted = len(observed) == repeated.replicas
    trained = [step for objects in observed for seen in objects for step in seen.drawn]
    predicted = [seen.predicting for objects in observed for seen in objects]
    at = repeated.predicting
    problems = [
        *_other_dropout(trained, [*repeated.drawn, *repeated.drawn[BEFORE:]], "while it trains", counted=counted),
        *_other_dropout(predicted, [*at.values(), at[BEFORE]], "while it predicts", counted=counted),
    ]
    problems += _alike(observed) or _parts_alike(observed)
    return [f"dropout: {problem}" for problem in problems[:1]]


def _other_dropout(
    mine: Sequence[Sequence[Drawn]], plain: Sequence[Sequence[Drawn]], when: str, *, counted: bool
) -> list[str]:
    """Whether units are dropped with the task's probabilities, and as often as a plain training drops."""
    counts, expected = (
        Counter(f"{1 - each.kept:.6g}" for each in chain.from_iterable(drawn) if each.kept is not None)
        for drawn in (mine, plain)
    )
    for p in sorted(counts.keys() | expected.keys()):
        if bool(counts[p]) != bool(expected[p]) or (counted and counts[p] != expected[p]):
            dropped = f"units are dropped {counts[p]} times with probability {p}"
            return [f"{when}, {dropped}; the task does it {expected[p]} times"]
    return []


def _alike(observed: Objects) -> list[str]:
    """The same random numbers in two steps, or on two replicas.

    The second object trains the first one's last steps once more, with the same numbers.
    """
    steps = {
        first.replica.index: [*enumerate(first.drawn), *enumerate(second.drawn, BEFORE)]
        for first, second in reversed(observed)
    }
    drawn_by: dict[str, tuple[int, int]] = {}
    lines = []
    for step in range(BEFORE + AFTER):
        for index, drawn in sorted(steps.items()):
            for digest in {each.digest for at, each_step in drawn if at == step for each in each_step if each.digest}:
                other, earlier = drawn_by.setdefault(digest, (index, step))
                if other == index and earlier != step:
                    lines.append(f"the same random numbers are drawn in steps {earlier} and {step}")
                elif other != index:
                    when = "" if earlier == step else f", in their steps {earlier} and {step}"
                    lines.append(f"the same random numbers are drawn on replicas {other} and {index}{when}")
    return lines


def _parts_alike(observed: Objects) -> list[str]:
    """The same random numbers for two parts of a slice, as several GPUs of one process draw with one seed."""
    lines = []
    for step, drawn in ((step, each) for first, _ in observed for step, each in enumerate(first.drawn)):
        digests = [each.digest for each in drawn if each.digest]
        if len(set(digests)) < len(digests):
            lines.append(f"the same random numbers are drawn for two parts of a slice in step {step}")
    return lines
