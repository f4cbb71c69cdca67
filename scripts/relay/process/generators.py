"""This process's random generators: how they start, and their state in checkpoints."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from relay.process.devices import is_gpu


def seed_generators(seed: int, devices: Sequence[torch.device] = ()) -> None:
    """Start every random generator that `generators` saves: torch's, also on GPUs, numpy's and Python's.

    `devices` are this process's. Each GPU draws otherwise, or chunks of a batch on several GPUs would drop alike.
    """
    torch.manual_seed(seed)
    for place, device in enumerate(devices):
        if place and is_gpu(device):
            its_seed = int(np.random.SeedSequence((seed, place)).generate_state(1, np.uint64)[0] >> 1)
            torch.cuda.default_generators[device.index].manual_seed(its_seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def generators() -> dict[str, Any]:
    """The state of every random generator of this process, as tensors and plain values (`weights_only` reads it)."""
    numpy: dict[str, Any] = np.random.get_state(legacy=False)
    numpy["state"]["key"] = torch.from_numpy(numpy["state"]["key"].astype(np.int64))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None,
        "python": list(random.getstate()[1]),
        "python_gauss": random.getstate()[2],
        "numpy": numpy,
    }


def restore_generators(state: dict[str, Any]) -> None:
    """The inverse of `generators`; `state` stays as it is."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_initialized():  # not where a CPU goes on with what a GPU began
        for number, its_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(its_state, number)
    random.setstate((3, tuple(state["python"]), state["python_gauss"]))
    numpy = state["numpy"]
    key = numpy["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})


def alike(one: Any, other: Any) -> bool:
    """Whether two states of generators are equal, of as many GPUs as both have."""
    if isinstance(one, dict):
        return all(alike(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if one is None or other is None:  # no GPU, or no half of a pair of Python's normal numbers
        return True
    if isinstance(one, list) and one and isinstance(one[0], torch.Tensor):
        return all(map(torch.equal, one, other))
    return bool(one == other)


@contextmanager
def apart(seed: int, devices: Sequence[torch.device]) -> Iterator[None]:
    """Draw from this seed within, also on these GPUs; all generators then go on as before."""
    kept = generators()
    seed_generators(seed, devices)
    try:
        yield
    finally:
        restore_generators(kept)


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Draw from this seed within, on the CPU, by torch, numpy and Python; all generators then go on as before."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    start_drawing(seed)
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def start_drawing(seed: int) -> None:
    """Start the CPU's generators of torch, numpy and Python; `torch.manual_seed` would start every GPU's, too."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
