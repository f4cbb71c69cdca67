"""What passes from one stage to the next: tensors that can be sent, each of which brings a gradient back."""

from __future__ import annotations

from collections.abc import Sequence
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
            numbers = sum(map(self._bytes, self.carried)) // CARRIER.itemsize
            shapes.append((torch.Size([numbers]), CARRIER))
        return [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in shapes]

    def packed(self, values: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The values as they are sent: contiguous, and no views, which torch's schedules could not detach in place."""
        sent: tuple[torch.Tensor, ...] = Pack.apply(self, *values)
        return sent

    def unpacked(self, sent: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values. In the backward pass, each tensor sent gets a contiguous gradient."""
        return list(Unpack.apply(self, *sent)) if sent else []

    def _bytes(self, place: int) -> int:
        like = self.likes[place]
        return -(-prod(like.shape) * like.dtype.itemsize // ALIGNED) * ALIGNED

    def pack(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies of the values, as they are sent."""
        sent = [values[place].clone(memory_format=torch.contiguous_format) for place in self.graded]
        if self.carried:
            (carrier,) = self.sent(values[0].device)[-1:]
            held, start = carrier.view(torch.uint8), 0
            for place in self.carried:
                value = values[place].contiguous().flatten().view(torch.uint8)
                held[start : start + len(value)] = value
                start += self._bytes(place)
            sent.append(carrier)
        return sent

    def unpack(self, sent: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The values that were sent."""
        values: dict[int, torch.Tensor] = {}
        for place, tensor in zip(self.graded, sent, strict=False):
            values[place] = tensor.detach()
        start = 0
        for place in self.carried:
            like = self.likes[place]
            held = sent[-1].detach().view(torch.uint8)[start : start + prod(like.shape) * like.dtype.itemsize]
            values[place] = held.view(like.dtype).view(like.shape)
            start += self._bytes(place)
        return [values[place] for place in range(len(self.likes))]


class Pack(Function):
    """The values of a stage, as they are sent."""

    @staticmethod
    def forward(ctx: Any, boundary: Boundary, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All that is sent."""
        ctx.boundary = boundary
        return tuple(boundary.pack(values))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the values that have one."""
        gradient_at: dict[int, torch.Tensor] = dict(zip(ctx.boundary.graded, gradients, strict=False))
        return None, *(gradient_at.get(place) for place in range(len(ctx.boundary.likes)))


class Unpack(Function):
    """What was sent, as the values of a stage."""

    @staticmethod
    def forward(ctx: Any, boundary: Boundary, *sent: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All values."""
        ctx.boundary = boundary
        ctx.carrier = sent[-1].new_zeros(()).expand(sent[-1].shape) if boundary.carried else None
        values = boundary.unpack(sent)
        ctx.mark_non_differentiable(*(values[place] for place in boundary.carried))
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of all that was sent: zeros where a value did not count."""
        graded = [gradients[place].contiguous() for place in ctx.boundary.graded]
        return None, *graded, *([] if ctx.carrier is None else [ctx.carrier.contiguous()])
