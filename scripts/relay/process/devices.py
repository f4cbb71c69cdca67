"""Which devices are GPUs, and what keeps their random generators. No other file compares a device's type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# What torch calls a GPU. Tests that have none name a pretended one here.
GPU = "cuda"


def is_gpu(device: torch.device) -> bool:
    """Whether the device is a GPU."""
    return device.type == GPU


def gpu(number: int) -> torch.device:
    """The GPU of that number among those that this process sees."""
    return torch.device(GPU, number)


def synchronise(device: torch.device) -> None:
    """Wait until all that was queued on a GPU is done; on a CPU nothing is queued."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def use_own_stream(device: torch.device) -> None:
    """Let this thread queue its work on a stream of its own: on the default one no CUDA graph can be captured.

    What DDP registers at its parameters belongs to the stream on which it was built.
    """
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    torch.cuda.set_stream(stream)


@contextmanager
def generators_kept(*devices: torch.device) -> Iterator[None]:
    """Whatever is drawn or seeded within, the CPU's generator and those of these devices then go on as before.

    `torch.manual_seed` seeds every GPU that the process sees: name each device whose generator the training uses.
    """
    with torch.random.fork_rng(devices=[device for device in devices if is_gpu(device)]):
        yield
