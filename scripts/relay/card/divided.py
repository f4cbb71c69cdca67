"""What of a task can be divided: a model's units that its user names, stages, matrices and experts; and its outputs, by
the dimension of each tensor that counts the samples.
"""

from typing import Any

import torch
from torch import nn

from relay.card.draft import Draft
from relay.card.model import Computable
from relay.process.generators import drawn_from
from relay.strategies import _experts
from relay.strategies._cut import cuttable
from relay.strategies._tensor_plan import Unseen, plan_of
from relay.task import batches
from relay.task.batches import OUTPUTS, Along, Batch
from relay.task.bound import BoundTask
from relay.task.calls import copied, in_mode
from relay.task.places import calling


def see(bound: BoundTask, model: nn.Module, batch: Batch, draft: Draft) -> None:
    """Put onto the card what pipelines, tensor and expert parallelism divide. Raises UserError."""
    with calling(type(bound.own), "blocks"):
        units = [name for name, _ in bound.blocks(model)]
    with calling(type(bound.own), "inputs"):
        arguments, keywords = bound.arguments(batch)
    with calling(type(bound.own), "model"):
        draft.card["experts"] = _experts.count(model)
        places = cuttable(model, arguments, keywords, units, draft.device)
    draft.card |= {"uncuttable": places} if isinstance(places, str) else {"cuts": tuple(places)}
    with calling(type(bound.own), "tensor_plan"):
        try:
            plan = plan_of(model, arguments, keywords, own=bound.tensor_plan(model))
        except Unseen:
            return
    draft.card |= {"matrices": plan.share, "divisible": plan.divisible}


def see_outputs(task: Computable, draft: Draft) -> None:
    """Look at the outputs of two batches, the second of which has a sample more."""
    draft.card["outputs_along"] = along = _along(task, training=False)
    draft.card["outputs_within"] = _within(task, along)
    draft.card["training_outputs_along"] = _along(task, training=True)


def _along(task: Computable, *, training: bool) -> Along:
    """The tensors whose samples the first dimension does not count; none where a model takes no other batch."""
    samples = batches.count(task.batch)
    longer = batches.taken(task.batch, torch.arange(samples + 1) % samples)
    try:
        model = in_mode(copied(task.model), training)  # a state that it keeps fits the first batch alone
        with drawn_from(0), torch.set_grad_enabled(training):
            outputs = [batches.placed(task.bound.outputs(model, each), OUTPUTS) for each in (task.batch, longer)]
        one, other = ({place: part for place, part in each if isinstance(part, torch.Tensor)} for each in outputs)
        along = {place: _counting(part, other[place], samples) for place, part in one.items() if place in other}
    except Exception:  # the model keeps something of the batch before, or its outputs cannot be opened
        return {}
    if len(one) == len(other):
        return {place: dimension for place, dimension in along.items() if dimension != 0}
    # A tensor for each sample: another batch has other places. What stays is a tensor of all samples.
    return {OUTPUTS: None} | {place: each for place, each in along.items() if each is not None and one[place].dim()}


def _within(task: Computable, along: Along) -> tuple[str, ...]:
    """The whole numbers of a prediction that are others where the batch is divided: they count within a batch."""
    try:
        model = in_mode(copied(task.model), training=False)
        with drawn_from(0), torch.no_grad():
            parts = (task.batch, *batches.chunks(task.batch, 2))
            outputs = [dict(batches.placed(task.bound.outputs(model, each), OUTPUTS)) for each in parts]
        whole, *halves = ({place: each for place, each in parts.items() if _of_whole(each)} for parts in outputs)
        dimensions = {place: along.get(place, along.get(OUTPUTS, 0)) for place in whole}
        counted = {place: each for place, each in dimensions.items() if each is not None}
        joined = {place: torch.cat([half[place] for half in halves], each) for place, each in counted.items()}
    except Exception:  # the model takes no such part
        return ()
    return tuple(place for place, each in joined.items() if not torch.equal(each, whole[place]))


def _of_whole(part: Any) -> bool:
    """Whether it is a tensor of whole numbers, and of more than a single one."""
    return isinstance(part, torch.Tensor) and part.dim() > 0 and not (part.is_floating_point() or part.is_complex())


def _counting(part: torch.Tensor, longer: torch.Tensor, samples: int) -> int | None:
    """The dimension that counts the samples, of which `longer` has one more; None where the shape stays as it is."""
    if not part.dim() == longer.dim() > 0:
        return 0
    grown = [place for place in range(part.dim()) if part.shape[place] != longer.shape[place]]
    # Samples may have several rows each. What grows otherwise may be padded to the longest sample.
    in_step = [place for place in grown if part.shape[place] * (samples + 1) == longer.shape[place] * samples]
    return next(iter([*in_step, *grown]), None)
