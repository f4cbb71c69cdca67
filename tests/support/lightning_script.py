"""A small training by Lightning's Trainer, made a chain: `lightning_script.py RESULT [STEP SIGNAL]`.

When the batch after the step has begun, the last rank sends itself the signal. Options are in the environment.
"""

import os
import random
import signal
import sys
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, Dataset

from relay.chain import peers
from relay.chain.lightning import ChainCallback

given = os.environ.get
peers.AGREE_SECONDS = 0.0  # at each step, which takes a millisecond
RESULT, STEP, SIGNAL = [*sys.argv[1:], "0", ""][:3]
LIMIT = given("LIMIT", "")


class Numbers(Dataset[Any]):
    """Samples to which each reading adds random numbers of Python and torch."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), index / 32) + torch.rand(4) / 9 + random.random() / 9, index % 2


class Net(LightningModule):
    """Draws random numbers in its dropout, and keeps an average of its weights in a hook after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2))
        self.register_buffer("average", torch.zeros(8, 4))

    def training_step(self, batch: Any, number: int) -> Any:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("loss", self.training_step(batch, number) + torch.rand(()), sync_dist=True)

    def on_train_batch_end(self, *args: Any) -> None:
        self.average.lerp_(self.layers[0].weight.detach(), 0.1 * torch.rand(()).item())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.01)
        by_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
        # The loss never falls so far: the rate is lower after each epoch but the first, if no epoch is passed over.
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        watching = {"scheduler": plateau, "monitor": "loss", "strict": False}
        return [optimizer], [{"scheduler": by_step, "interval": "step"}, watching]


class Signals(Callback):
    """Sends this process a signal in a step."""

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        is_last = trainer.global_rank == trainer.world_size - 1  # any rank's signal is enough
        if SIGNAL and is_last and trainer.fit_loop.total_batch_idx == int(STEP):
            os.kill(os.getpid(), signal.Signals[SIGNAL])


def main() -> None:
    """Train, and write the model."""
    torch.manual_seed(0)
    random.seed(0)
    chain = ChainCallback(save_steps=3, time_limit=float(LIMIT) if LIMIT else None)
    trainer = Trainer(
        accelerator="cpu", devices=int(given("DEVICES", "1")), max_epochs=3, logger=False, callbacks=[chain, Signals()],
        enable_progress_bar=False, enable_model_summary=False, accumulate_grad_batches=int(given("GATHER", "1")),
        val_check_interval=float(given("VALIDATE", "1.0")), check_val_every_n_epoch=int(given("EVERY", "1")),
    )  # fmt: skip
    model = Net()
    plain = torch.arange(32) if given("PLAIN", "") else None
    samples = Numbers() if plain is None else [(torch.full((4,), each / 32), each % 2) for each in plain.tolist()]
    # Under DDP the Trainer gives it a DistributedSampler.
    own = torch.Generator().manual_seed(5) if trainer.world_size == 1 and plain is None else None
    workers = int(given("WORKERS", "0"))
    loader = DataLoader(samples, 4 // trainer.world_size, shuffle=True, num_workers=workers, generator=own)
    trainer.fit(model, loader, DataLoader(Numbers(), 8), ckpt_path=chain.newest(trainer))
    if trainer.is_global_zero:
        rate = torch.tensor(trainer.optimizers[0].param_groups[0]["lr"])
        torch.save({**model.state_dict(), "rate": rate}, RESULT)


if __name__ == "__main__":
    main()
