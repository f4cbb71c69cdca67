"""Which devices are GPUs, and what keeps their random generators. No other file compares a device's type."""

import time
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


def wait_for(device: torch.device, seconds: float) -> None:
    """As `synchronise`. Raises RuntimeError, whose words `run_folder.known_faults` knows, where it takes too long.

    NCCL's watchdog sees no collective of a captured step.
    """
    if not is_gpu(device):
        return
    event, deadline = torch.cuda.Event(), time.monotonic() + seconds
    event.record()
    while not event.query():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Timed out waiting {seconds * 1000:.0f}ms for GPU operation: a step has not ended")
        time.sleep(0.0005)


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
