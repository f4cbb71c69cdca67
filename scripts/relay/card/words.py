"""A task's card in words: what was seen, and what it means for the strategies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from relay.spec.card import LOOKED_AT, Card
from relay.spec.dataset import DatasetSpec
from relay.spec.labels import counted
from relay.spec.looked import Looked
from relay.spec.tasks import TaskSpec

SHOWN = 3  # names in a line
FLOAT32 = 4  # bytes


def in_words(looked: Looked) -> str:
    """The card, a line for each finding; what is not known is said."""
    return _text(looked, _parts(looked))


def all_in_words(cards: Sequence[Looked]) -> Iterator[str]:
    """The cards of several combinations of a task's options; what one has in common with the first is told once."""
    first = _parts(cards[0])
    yield in_words(cards[0])
    for looked in cards[1:]:
        parts = _parts(looked)
        same = [title for title, lines in parts.items() if lines == first[title]]
        differing = {title: lines for title, lines in parts.items() if title not in same}
        new = replace(looked, warnings=tuple(each for each in looked.warnings if each not in cards[0].warnings))
        yield "\n".join([_text(new, differing), *([f"  {', '.join(same)}: as above"] if same else [])])


def _parts(looked: Looked) -> dict[str, list[str]]:
    """The lines below each title."""
    parts = {"data": _data, "model": _model, "dividing": _dividing, "training": _training}
    return {title: [*part(looked.task, looked.dataset)] for title, part in parts.items()}


def _text(looked: Looked, parts: Mapping[str, Sequence[str]]) -> str:
    lines = [_heading(looked.task)]
    for title, findings in parts.items():
        lines += [f"  {title}", *(f"    {line}" for line in findings)]
    return "\n".join([*lines, *(f"  warning: {each}" for each in looked.warnings)])


def _heading(task: TaskSpec) -> str:
    """The task's file, its name where results have another one, and its options."""
    file = Path(task.file)
    name = task.file or task.name
    also = f" (in results and tables: {task.name})" if task.file and file.stem != task.name else ""
    options = ", ".join(f"{name} {value}" for name, value in task.options.items())
    return f"{name}{also}{f', with {options}' if options else ''}"


def _data(task: TaskSpec, dataset: DatasetSpec) -> Iterator[str]:
    card = task.card
    of = f" of {dataset.name}" if dataset.name != task.name else ""
    yield f"{dataset.train_count:,} training and {dataset.test_count:,} test samples{of}."
    for leaf in card.batch:
        shape = " × ".join(map(str, leaf.shape)) or "one number"
        yield f"{leaf.place}: {shape} for each sample, {leaf.dtype}."
    if card.equal_shapes is False:
        yield "Samples differ in shape, or make a batch only together: they are read one by one (loader dataloader)."
    elif card.random_samples:
        yield "Samples differ from epoch to epoch: they are read one by one (loader dataloader)."
    elif card.sample_bytes is not None:
        size = card.sample_bytes * dataset.train_count
        yield f"All samples have one shape: the training set can be kept in memory, where it takes {_bytes(size)}."
    yield f"At most {LOOKED_AT} samples of each set were read, spread over it. A job that meets a faulty one names it."


def _model(task: TaskSpec, dataset: DatasetSpec) -> Iterator[str]:
    card = task.card
    if card.parameters is None:
        yield "Not seen yet: a job looks at it."
        return
    yield f"{card.parameters:,} parameters, {_bytes(FLOAT32 * card.parameters)} in float32."
    if card.forward_flops:
        yield f"{_scaled(card.forward_flops)} floating-point operations for the forward pass of a sample."
    for names in card.tied:
        yield f"{' and '.join(names)} are one parameter: what is sharded or cut keeps them together."
    if card.batch_norm:
        yield f"BatchNorm ({several(card.batch_norm)}): its statistics are those of each replica's slice."
        yield "  Strategies that divide a batch therefore train a little differently. The gate freezes the statistics."
    if card.buffers:
        changed = f"The forward pass changes buffers ({several(card.buffers)})"
        yield f"{changed}: each replica has its own. The gate freezes them."
    if card.dropout:
        yield f"Dropout ({several(card.dropout)}): each process draws its own. The gate takes it out, or draws alike."
    if card.draws:
        yield f"Further random numbers of torch's ({several(card.draws)}): the gate draws the same for every sample."
    if card.outside:
        yield (
            f"Random numbers from {' and '.join(card.outside)}: no other process repeats them, so that no strategy can "
            "be proven. Use torch's."
        )
    if card.without_gradient:
        yield f"{several(card.without_gradient)} got no gradient in the first step: ddp looks for such in each step."


def _dividing(task: TaskSpec, dataset: DatasetSpec) -> Iterator[str]:
    card = task.card
    if card.dependent:
        yield f"{card.dependent[0].upper()}{card.dependent[1:]}. So nothing can be proven."
    elif not card.outside:  # its loss is another one each time
        yield _loss(card)
    yield from _outputs(card)
    if card.cuts:
        places = f"{counted(len(card.cuts), 'place')} ({several(card.cuts)})"
        yield f"It can be cut at {places}: up to {len(card.cuts) + 1} stages."
    elif card.uncuttable:
        yield f"It cannot be cut, so that pipeline and model parallelism are skipped: {card.uncuttable}."
    if card.matrices:
        rules = "; ".join(f"the processes must divide {count} {name}" for name, count in card.divisible)
        yield f"Tensor parallelism splits {card.matrices:.0%} of the parameters{f'; {rules}' if rules else ''}."
    elif card.matrices is not None:
        yield "Tensor parallelism finds nothing to split: write `tensor_plan(model)` if you know what can be."
    if card.experts:
        yield f"{card.experts} experts: expert parallelism divides them."


def _loss(card: Card) -> str:
    if card.mean_difference is None:
        return (
            "It is not known whether the loss is a mean over samples; `small` in the file would let a look compute it."
        )
    if card.mean_difference == 0:
        return "The loss is a mean over samples: strategies that divide a batch compute the same."
    if card.mean_difference == math.inf:
        return (
            "The loss is no mean over samples: that of a part of a batch is not finite. Strategies that divide a batch "
            "fail, and none can be proven."
        )
    return (
        f"The loss is no mean over samples: a batch's is {100 * card.mean_difference:.2g} % from its parts'. (A mean "
        "over the tokens of padded sequences is none, nor is a weighted one, nor Dice of a batch.) Strategies that "
        "divide a batch train something else, and none can be proven. Take the mean of a value for each sample."
    )


def _outputs(card: Card) -> Iterator[str]:
    """Only what is unusual: the first dimension of nearly all outputs counts the samples."""
    for place, dimension in {**card.training_outputs_along, **card.outputs_along}.items():
        if dimension is None:
            yield f"{place}: no dimension counts the samples. It is not divided, joined or compared in proofs."
        else:
            yield f"{place}: dimension {dimension} counts the samples. It is divided and joined along that one."


def _training(task: TaskSpec, dataset: DatasetSpec) -> Iterator[str]:
    options = {**task.card.optimizer_options, **task.optimizer_options}
    others = "".join(f", {name} {value:g}" for name, value in options.items())
    batch = f"a global batch of {task.global_batch_size}"
    yield f"Optimiser {task.optimizer or 'not seen yet'}, learning rate {task.learning_rate:g}{others}, {batch}."
    steps = dataset.train_count // task.global_batch_size
    length = f"{task.epochs:g} epoch{'' if task.epochs == 1 else 's'} of {counted(steps, 'step')}"
    of_a_sample = f" ({task.units_per_sample:,} a sample)" if task.units_per_sample != 1 else ""
    yield f"{length}; speed counts {task.unit}{of_a_sample}, schedule {task.schedule['kind']}."
    if steps == 0:
        yield "  A batch is larger than the training set: give a smaller global_batch_size."
    if task.metrics:
        yield f"Evaluations measure the loss and {', '.join(task.metrics)}."
    if names := task.card.no_options:
        yield f"No options: {several(names)}. An option is one number or text, True or False."


def several(names: Sequence[str]) -> str:
    """a, b, c and 4 more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _bytes(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"


def _scaled(count: int) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count}"
