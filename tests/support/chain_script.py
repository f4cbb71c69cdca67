"""A small training of each kind, made a chain: `chain_script.py plain|ddp|fsdp RESULT`. Tests kill it anywhere.

It draws random numbers wherever a script may: dropout, a shuffled loader, Python's and numpy's. It is deterministic.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from relay.chain import resume

EPOCHS = 3
STEP_SECONDS = 0.02  # a step that takes long enough to be met by a kill


class Noisy(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that random numbers of three generators are added to when they are read."""

    def __init__(self, count: int = 80) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(count, 8, generator=drawn)
        self.labels = torch.randint(0, 3, (count,), generator=drawn)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = random.gauss(0.0, 0.1) + float(np.random.normal(0.0, 0.1))
        return self.inputs[index] + noise + 0.1 * torch.randn(8), self.labels[index]


def bits(value: Any) -> str:
    """A checksum of all tensors and values in a state."""
    if isinstance(value, torch.Tensor):
        value = value.to_local() if hasattr(value, "to_local") else value
        return hashlib.sha256(value.detach().contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (list, tuple)):
        return hashlib.sha256("".join(map(bits, value)).encode()).hexdigest()
    return repr(value)


def main(kind: str, result: Path) -> None:
    """Train, and write checksums of everything that the training ends with."""
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    rank = 0
    if kind != "plain":
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)]
    model: nn.Module = nn.Sequential(*layers)
    things: dict[str, Any] = {}
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        fully_shard(model)
    else:
        things["ema"] = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    if kind != "plain":
        torch.manual_seed(100 + rank)  # each replica its own dropout
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.8)
    data = Noisy()
    sampler: Any = None if kind == "plain" else DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=8, shuffle=sampler is None, sampler=sampler)
    run = resume(
        "checkpoints", model=model, optimizer=optimizer, scheduler=scheduler, loader=loader, save_steps=2, **things
    )
    for step, (inputs, labels) in run.steps(loader, epochs=EPOCHS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        scheduler.step()
        if things:
            things["ema"].update_parameters(model)
        time.sleep(STEP_SECONDS)
        Path(f"step-{rank}").write_text(str(step))
        run.after(step)
    ended = {"model": model, "optimizer": optimizer, "scheduler": scheduler, **things}
    told = {name: bits(thing.state_dict()) for name, thing in ended.items()}
    told |= {"torch": bits(torch.get_rng_state()), "random": random.random(), "numpy": np.random.random()}
    path = result.with_name(f"{result.name}-{rank}")
    path.with_suffix(".new").write_text(json.dumps({"step": run.step, **told}))
    path.with_suffix(".new").replace(path)
    if kind != "plain":
        dist.destroy_process_group()


if __name__ == "__main__":
    assert os.environ.get("OMP_NUM_THREADS") == "1", "sums have to be made in the same order"
    main(sys.argv[1], Path(sys.argv[2]))
