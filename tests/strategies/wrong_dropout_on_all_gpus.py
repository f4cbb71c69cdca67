"""Wrong: all GPUs of the process begin with one seed, so that the chunks of a batch drop the same units."""

import torch
from torch import nn

from relay.strategies.base import Batch, Requirements, Strategy


class OneSeed(Strategy):
    """Wrong: all GPUs of the process begin with one seed, so that the chunks of a batch drop the same units."""

    requirements = Requirements(
        processes="one", devices=("cuda",), least_devices=2, divides=("samples",), compiles=False, copies_model=True
    )

    def build(self) -> None:
        self.build_whole()
        self.module = nn.DataParallel(self.model, list(self.ranks.devices))

    def train_step(self, batch: Batch) -> torch.Tensor:
        state = torch.cuda.get_rng_state(self.ranks.device)
        for device in self.ranks.devices:
            torch.cuda.set_rng_state(state, device)
        return super().train_step(batch)
