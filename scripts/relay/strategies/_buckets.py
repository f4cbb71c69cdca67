"""The buckets in which DistributedDataParallel averages gradients, made final before the first step."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from relay.process.devices import generators_kept
from relay.task import batches
from relay.task.bound import BoundTask


def settle(wrapper: DistributedDataParallel, task: BoundTask, samples: int, device: torch.device) -> None:
    """Run two passes after which DDP's buckets are final. They change no parameters, buffers or random generators.

    DDP sorts its buckets after the first pass. With three or more processes, a sum is rounded differently in another
    bucket. A resumed run would then not be bit for bit like an uncut one, and a communication hook's state belongs to a
    bucket. The passes are in training mode, so that the code which is compiled here is the code of training.
    """
    buffers = [buffer.clone() for buffer in wrapper.module.buffers()]
    batch = batches.moved(task.example(samples), device)
    with generators_kept(device):
        if wrapper.static_graph:
            # DDP averages gradients only of outputs that torch can open, and says nothing of others. This teaches torch
            # the classes of the model's outputs.
            with torch.no_grad():
                batches.leaves(task.outputs(wrapper.module, batch))
        for _ in range(2):  # the second pass starts with the new buckets
            task.loss(task.outputs(wrapper, batch), batch).backward()
    wrapper.zero_grad()
    for buffer, before in zip(wrapper.module.buffers(), buffers, strict=True):
        buffer.copy_(before)
