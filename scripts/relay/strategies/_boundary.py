"""What passes from one stage to the next: tensors that can be sent, each of which brings a gradient back."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch.autograd import Function

from relay.strategies._record import Like

CARRIER = torch.float32
ALIGNED = 16  # bytes, which every type of numbers fits into


class Boundary:
    """How the values that cross a boundary are sent.

    torch's stages want a gradient for each tensor that they send. So a value with a gradient is sent as it is, and all
    without one as the bytes of a common tensor, whose gradient is zero.
    """

    def __init__(self, likes: Sequence[Like]) -> None:
        self.likes = likes
        self.graded = [place for place, like in enumerate(likes) if like.requires_grad]
        self.carried = [place for place, like in enumerate(likes) if not like.requires_grad]

    def sent(self, device: torch.device | str) -> list[torch.Tensor]:
        """Empty tensors, such as are sent."""
        shapes = [(self.likes[place].shape, self.likes[place].dtype) for place in self.graded]
        if self.carried:
            *_, (_, last) = self.places_of_bytes()
            shapes.append((torch.Size([-(-last.stop // ALIGNED) * ALIGNED // CARRIER.itemsize]), CARRIER))
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]

    def packed(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The values as they are sent: contiguous, and no views, which torch's schedules could not detach in place."""
        sent = [values[place].clone(memory_format=torch.contiguous_format) for place in self.graded]
        if self.carried:
            *_, carrier = self.sent(values[0].device)
            for place, held in self.places_of_bytes():
                carrier.view(torch.uint8)[held] = values[place].contiguous().flatten().view(torch.uint8)
            sent.append(carrier.requires_grad_(torch.is_grad_enabled()))
        return tuple(sent)

    def unpacked(self, sent: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values. In the backward pass, each tensor sent gets a contiguous gradient."""
        return list(Unpack.apply(self, *sent)) if sent else []

    def places_of_bytes(self) -> Iterator[tuple[int, slice]]:
        """Where the bytes of each value without a gradient are in their common tensor."""
        start = 0
        for place in self.carried:
            size = prod(self.likes[place].shape) * self.likes[place].dtype.itemsize
            yield place, slice(start, start + size)
            start += -(-size // ALIGNED) * ALIGNED


class Unpack(Function):
    """What was sent, as the values of a stage."""

    @staticmethod
    def forward(ctx: Any, boundary: Boundary, *sent: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All values."""
        ctx.boundary = boundary
        ctx.carrier = sent[-1].new_zeros(()).expand(sent[-1].shape) if boundary.carried else None
        values = {place: tensor.detach() for place, tensor in zip(boundary.graded, sent, strict=False)}
        for place, held in boundary.places_of_bytes():
            like = boundary.likes[place]
            values[place] = sent[-1].detach().view(torch.uint8)[held].view(like.dtype).view(like.shape)
        ctx.mark_non_differentiable(*(values[place] for place in boundary.carried))
        return tuple(values[place] for place in range(len(boundary.likes)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of all that was sent: zeros where a value did not count."""
        graded = [gradients[place].contiguous() for place in ctx.boundary.graded]
        return None, *graded, *([] if ctx.carrier is None else [ctx.carrier.contiguous()])
