"""What a training with evaluations and a checkpoint was, against its plain repetition: figures and problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from relay.equivalence import modules
from relay.equivalence.course import BESIDE, Seen
from relay.equivalence.figures import difference
from relay.equivalence.masks import Drawn, unlike_dropout
from relay.equivalence.repeated import Line, Loaded, Repeated, Tensors
from relay.equivalence.trials import EXACT
from relay.equivalence.verdict import Compared, Part, TrialName, Verdict
from relay.equivalence.work import Shares, undivided

# What is drawn twice alike with a smaller probability is not alike by chance.
LEAST_CHANCE = 1e-12


def compare(
    verdict: Verdict, repeated: Repeated, trained: Tensors, loaded: Tensors, alone: Loaded | str | None
) -> None:
    """All figures. `trained` is the first object's model, `loaded` the second one's right after loading; `alone` is
    what one plain process loads from the last checkpoint, or why it cannot."""
    firsts, seconds = [told.first for told in repeated.told], [told.second for told in repeated.told]
    told = dict.fromkeys(problem for seen in (*firsts, *seconds) for problem in seen.problems)
    verdict.problems += [problem for problem in told if problem not in verdict.problems]
    _losses(verdict, "as trained", repeated, firsts, repeated.first, "with dropout and BatchNorm at work")
    _tensors(verdict, "as trained", "parameters", trained, repeated.beside.model, "after these steps")
    _statistics(verdict, repeated, firsts)
    _outputs(verdict, "as trained", repeated, firsts, repeated.first)
    _tensors(verdict, "between steps", "parameters", loaded, repeated.middle.model, "after a checkpoint was loaded")
    _outputs(verdict, "between steps", repeated, seconds, repeated.second)
    _losses(verdict, "between steps", repeated, seconds, repeated.second, "after a checkpoint was loaded")
    if isinstance(alone, str):
        verdict.problems.append(f"between steps: one plain process cannot load the checkpoint: {alone}")
    elif alone is not None:
        _tensors(verdict, "between steps", "state", alone.all, repeated.end.all, "of a checkpoint in one plain process")


def _losses(
    verdict: Verdict, trial: TrialName, repeated: Repeated, seen: Sequence[Seen], line: Line, when: str
) -> None:
    curves = [each.losses for each, told in zip(seen, repeated.told, strict=True) if told.replica.reports]
    mine, expected = torch.tensor(curves, dtype=torch.float64).mean(0), torch.tensor(line.losses, dtype=torch.float64)
    what = f"largest loss difference in {len(line.losses)} steps {when}"
    verdict.add(Part(trial, "losses", what, difference(mine, expected), EXACT))
    for step, (loss, other) in enumerate(zip(mine.tolist(), expected.tolist(), strict=True), line.begins):
        if not abs(loss - other) <= EXACT:
            verdict.where = (
                verdict.where or f"first differs at step {step + 1} in the loss ({abs(loss - other):.1e}), {when}"
            )


def _tensors(
    verdict: Verdict, trial: TrialName, compared: Compared, found: Tensors, expected: Tensors, when: str
) -> None:
    """Compare tensors by name."""
    if missing := sorted(set(expected) - set(found)):
        verdict.problems.append(f"{trial}: {missing[0]} is missing {when} ({len(missing)} of {len(expected)} are)")
        return
    figures = {name: difference(found[name], tensor) / _scale(name, expected) for name, tensor in expected.items()}
    worst = _worst(figures)
    verdict.add(Part(trial, compared, f"largest difference {when}, in {worst}", figures[worst], EXACT))
    for name, figure in figures.items():
        if not figure <= EXACT:
            verdict.where = verdict.where or f"first differs {when}, in {name} ({figure:.1e})"


def _scale(name: str, expected: Tensors) -> float:
    """What a difference is relative to: for an optimizer's state, such as Adam's small squares, its largest value."""
    kind, of, _ = name.partition(" of ")
    if not of:
        return 1.0
    return max(float(t.abs().max()) for n, t in expected.items() if n.startswith(f"{kind} of ") and t.numel()) or 1.0


def _worst(figures: Mapping[str, float]) -> str:
    """The name with the largest figure; one that is no number is the largest."""
    return max(figures, key=lambda name: (figures[name] != figures[name], figures[name]))


def _statistics(verdict: Verdict, repeated: Repeated, seen: Sequence[Seen]) -> None:
    """Compare every rank's buffers with its replica's; under DDP a step begins with the first replica's."""
    figures: dict[str, float] = {}
    for told, each in zip(repeated.told, seen, strict=True):
        candidates = repeated.statistics_of(told.replica.index)
        for name, buffer in each.buffers.items():
            known = [difference(buffer, one[name]) for one in candidates if name in one]
            if known:
                figures[name] = max(figures.get(name, 0.0), min(known))
    if figures:
        worst = _worst(figures)
        what = f"largest difference of a replica's statistics, in {worst}"
        verdict.add(Part("as trained", "statistics", what, figures[worst], EXACT))


def _outputs(verdict: Verdict, trial: TrialName, repeated: Repeated, seen: Sequence[Seen], line: Line) -> None:
    """Compare what each replica predicts, at every time it predicted."""
    figures: dict[str, float] = {}
    for when, candidates in line.outputs.items():
        of = {
            told.replica.index: s.outputs[when]
            for told, s in zip(repeated.told, seen, strict=True)
            if when in s.outputs
        }
        figures[when] = max(
            min(difference(of[index], one) for one in known) if index in of else float("inf")
            for index, known in enumerate(candidates)
        )
    worst = _worst(figures)
    verdict.add(Part(trial, "outputs", f"largest difference of what it predicts {worst}", figures[worst], EXACT))


def compare_types(verdict: Verdict, repeated: Repeated) -> None:
    """Whether a rank keeps anything in fewer bits than float64."""
    lines = [line for told in repeated.told for line in told.lowered]
    verdict.problems += [f"low precision: in fp64: {line}" for line in lines[:1]]


def compared_modules(repeated: Repeated) -> list[str]:
    """What is wrong with the configuration of modules, and with the masks that were drawn; at most one line."""
    network = repeated.task.model()
    expected = modules.configurations(network)
    told = repeated.told
    problems = list(_unlike((t.built for t in told), expected, "when it is built"))
    for seen, training, when in (
        ([s.trained for t in told for s in (t.first, t.second)], True, "while it trains"),
        ([s.predicted for t in told for s in (t.first, t.second)], False, "while it predicts"),
    ):
        modal = {name: each | {"training": training} for name, each in expected.items() if _modal(network, name)}
        for called in seen:
            one_by_one = ({name: each} for name, found in called.modal.items() for each in found)
            problems += _unlike(one_by_one, modal, when)
        names = {name for called in seen for name in called.modal}
        problems += [f"{name} is not used {when}" for name in modal if name not in names]
        problems += [f"{name} is used {when}, where the task's modules belong" for name in names - modal.keys()]
    problems += _masks(network, [step for t in told for seen in (t.first, t.second) for step in seen.masks])
    problems += _alike(repeated) or _parts_alike(repeated)
    return [f"modules: {problem}" for problem in problems[:1]]


def _unlike(
    found: Iterable[dict[str, modules.Configuration]], expected: modules.Configurations, when: str
) -> list[str]:
    lines = (
        modules.unlike(name, each, expected[name], when)
        for configurations in found
        for name, each in configurations.items()
        if name in expected
    )
    return [line for line in lines if line]


def _modal(network: nn.Module, name: str) -> bool:
    return isinstance(network.get_submodule(name), modules.MODAL)


def _masks(network: nn.Module, steps: Sequence[dict[str, list[Drawn]]]) -> list[str]:
    """Whether each layer drops as many units as it should."""
    together: dict[str, list[Drawn]] = {}
    for step in steps:
        for name, drawn in step.items():
            together.setdefault(name, []).extend(drawn)
    found = ((name, unlike_dropout(drawn, network.get_submodule(name).p)) for name, drawn in together.items())  # type: ignore[arg-type]
    return [f"{name} {wrong}" for name, wrong in found if wrong]


def _alike(repeated: Repeated) -> list[str]:
    """Layers that drop the same units in two steps, or on two replicas."""
    # The second object trains the first one's last step once more, with the same masks.
    steps = {t.replica.index: [*t.first.masks, *t.second.masks[BESIDE:]] for t in reversed(repeated.told)}
    lines = []
    for name in sorted({name for masks in steps.values() for step in masks for name in step}):
        known: dict[bytes, tuple[int, int]] = {}
        for step in range(max(map(len, steps.values()))):
            for index, masks in sorted(steps.items()):
                bits = _bits(masks[step].get(name, ()))
                other, earlier = known.setdefault(bits, (index, step)) if bits else (index, step)
                if other == index and earlier != step:
                    lines.append(f"{name} drops the same units in steps {earlier} and {step}")
                elif other != index:
                    when = "" if earlier == step else f", in their steps {earlier} and {step}"
                    lines.append(f"{name} drops the same units on replicas {other} and {index}{when}")
    return lines


def _parts_alike(repeated: Repeated) -> list[str]:
    """Layers that drop the same units for two parts of a slice, as several GPUs of one process do with one seed."""
    lines = []
    for step, masks in ((step, m) for told in repeated.told for step, m in enumerate(told.first.masks)):
        for name, drawn in masks.items():
            known = [bits for each in drawn if (bits := _bits([each]))]
            if len(set(known)) < len(known):
                lines.append(f"{name} drops the same units for two parts of its slice in step {step}")
    return lines


def _bits(drawn: Sequence[Drawn]) -> bytes | None:
    """Which units are kept, to be compared; None where chance could draw the same twice."""
    if not drawn:
        return None
    kept = torch.cat([each.kept for each in drawn])
    share = float(kept.double().mean())
    alike = (share**2 + (1 - share) ** 2) ** sum(each.draws for each in drawn)
    return bytes(kept.numpy()) if alike < LEAST_CHANCE else None


def compare_work(verdict: Verdict, repeated: Repeated) -> None:
    """What each rank computes, as a part of what the plain training computes."""
    told, run = repeated.told, repeated.run
    whole = repeated.first.work + repeated.second.work
    if not all(total for total, _ in whole):
        verdict.notes.append("the network has no matrix products: what each rank computes is not counted")
        return
    done = [t.first.work + t.second.work for t in told]
    steps = [
        [Shares(rank[step][0] / total, rank[step][1] / forward) for rank in done]
        for step, (total, forward) in enumerate(whole)
    ]
    verdict.per_sample = tuple(
        sum(kind) / len(whole) / run.batch.global_batch_size for kind in zip(*whole, strict=True)
    )
    verdict.figures["computed_share"] = [
        round(sum(s[r].total for s in steps) / len(steps), 4) for r in range(len(told))
    ]
    if len(told) == 1:
        return
    held = sum(t.numel() * t.element_size() for name, t in repeated.end.optimizer.items())
    shares = [each.optimizer_bytes / held if held else 0.0 for each in told]
    uneven = run.task.experts > 0 and "parameters" in repeated.divides
    problems, notes = undivided([t.replica for t in told], steps, shares, uneven=uneven)
    verdict.problems += problems
    verdict.notes += notes
