"""The states of the random generators in a checkpoint."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chain_runs import DDP, Bench
from checkpointed import Training, filled
from relay.base.files import sha256
from relay.process.generators import alike, generators, restore_generators
from relay.run_folder.sealed import MANIFEST, damage
from relay.training.checkpoint import Checkpoints

pytest_plugins = ["chain_runs", "checkpointed"]


def test_every_generator_goes_on_where_it_was() -> None:
    torch.manual_seed(1)
    np.random.seed(2)  # the global one is what a user's code may draw from
    random.seed(3)
    random.gauss(0, 1)  # each of these keeps a second value for its next call
    np.random.standard_normal()
    state = generators()
    expected = draws()
    draws()
    restore_generators(state)
    assert draws() == expected


def draws() -> list[Any]:
    return [torch.rand(3).tolist(), np.random.standard_normal(3).tolist(), random.gauss(0, 1), random.random()]


@pytest.mark.slow
def test_each_replica_has_a_stream_of_its_own(bench: Bench) -> None:
    """Else all of them would drop the same units in every step."""
    chain = bench.chain("results", total_steps=1, evaluate_every_steps=1, **DDP).train(forked=True)
    one, other = (torch.load(chain.work / "step-1" / f"rng-{rank}.pt", weights_only=True) for rank in (0, 1))
    del one["step"], other["step"]
    assert not alike(one, other)


def test_a_generators_file_that_would_run_code_is_refused(checkpoints: Checkpoints, training: Training) -> None:
    """Even one whose checksum was made to fit."""
    filled(checkpoints, training, 1)
    place = checkpoints.directory / "step-1"
    torch.save(Path("anything but tensors"), place / "rng-0.pt")
    manifest = json.loads((place / MANIFEST).read_text())
    manifest["files"]["rng-0.pt"] = {
        "bytes": (place / "rng-0.pt").stat().st_size,
        "sha256": sha256(place / "rng-0.pt"),
    }
    (place / MANIFEST).write_text(json.dumps(manifest))
    assert damage(place) is None
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        checkpoints.resume(training.strategy, 0, 10)
