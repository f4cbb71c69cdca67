"""Right: gradients are summed by a ring that is written by hand: parts travel from neighbour to neighbour."""

import torch
import torch.distributed as dist

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Ring(ByHand):
    """Right: gradients are summed by a ring that is written by hand."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def average(self, tensor: torch.Tensor) -> None:
        rank, count = self.ranks.rank, self.ranks.world_size
        flat = torch.zeros(-(-tensor.numel() // count) * count, dtype=tensor.dtype)
        flat[: tensor.numel()] = tensor.flatten()
        parts = list(flat.chunk(count))
        for step in range(count - 1):  # each part's sum grows on its way round
            parts[(rank - step - 1) % count] += self._pass_on(parts[(rank - step) % count])
        for step in range(count - 1):  # the sums travel once more
            parts[(rank - step) % count].copy_(self._pass_on(parts[(rank - step + 1) % count]))
        tensor.copy_(flat[: tensor.numel()].view_as(tensor) / count)

    def _pass_on(self, part: torch.Tensor) -> torch.Tensor:
        """Send a part to the next rank; what the one before sends."""
        rank, count = self.ranks.rank, self.ranks.world_size
        received = torch.empty_like(part)
        sending = dist.isend(part.contiguous(), (rank + 1) % count)
        dist.recv(received, (rank - 1) % count)
        sending.wait()
        return received
