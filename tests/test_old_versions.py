"""What this does otherwise on old versions of torch, tried on the one that is here."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch

from checkpointed import Training
from relay.process.ranks import Ranks
from relay.strategies import base

pytest_plugins = ["chain_runs", "checkpointed"]


def test_a_version_that_writes_from_the_living_tensors_gets_copies(
    ranks: Ranks, prepared: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.5's `async_save` reads tensors in host memory as it writes them, and the training goes on meanwhile."""
    given: list[dict[str, Any]] = []

    def later(state: dict[str, Any], **_: Any) -> Future[Any]:
        given.append(state)
        return Future()

    monkeypatch.setattr(base, "COPIES_HOST_TENSORS", False)
    monkeypatch.setattr(base.dcp, "async_save", later)
    training = Training(ranks, prepared)
    training.train(2)
    training.strategy.save(tmp_path / "strategy")
    before = {name: tensor.clone() for name, tensor in training.strategy.model.state_dict().items()}
    training.train(1)
    assert given[0]["model"].keys() >= before.keys()
    assert all(torch.equal(given[0]["model"][name], tensor) for name, tensor in before.items())
    own = {held.data_ptr() for state in training.strategy.optimizer.state.values() for held in state.values()}
    assert own
    assert not own & {tensor.data_ptr() for tensor in given[0]["optimizer"].values()}
