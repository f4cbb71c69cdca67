"""What of a task's model can be divided: the units that its user names, stages, matrices, and experts."""

from __future__ import annotations

from torch import nn

from relay.card.seen import Seen
from relay.strategies import _experts
from relay.strategies._cut import cuttable
from relay.strategies._tensor_plan import Unseen, plan_of
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.places import calling


def see(bound: BoundTask, model: nn.Module, batch: Batch, seen: Seen) -> None:
    """Put onto the card what pipelines, tensor and expert parallelism divide. Raises UserError."""
    with calling(type(bound.own), "blocks"):
        units = [name for name, _ in bound.blocks(model)]
    with calling(type(bound.own), "inputs"):
        arguments, keywords = bound.arguments(batch)
    with calling(type(bound.own), "model"):
        seen.card["experts"] = _experts.count(model)
        places = cuttable(model, arguments, keywords, units, seen.device)
    seen.card |= {"uncuttable": places} if isinstance(places, str) else {"cuts": tuple(places)}
    with calling(type(bound.own), "tensor_plan"):
        try:
            plan = plan_of(model, arguments, keywords, own=bound.tensor_plan(model))
        except Unseen:
            return
    seen.card |= {"matrices": plan.share, "divisible": plan.divisible}
