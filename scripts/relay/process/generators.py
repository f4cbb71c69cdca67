"""This process's random generators: how they start, and what is drawn apart from them. Their state: `chain`'s."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from relay.chain.generators import generators, restore
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


def alike(one: Any, other: Any) -> bool:
    """Whether two states of generators are equal, of as many GPUs as both have."""
    if isinstance(one, dict):
        return all(alike(one[key], other[key]) for key in one)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, list) and all(isinstance(state, torch.Tensor) for state in (*one, *other)):  # GPUs', or none
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
        restore(kept)


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
