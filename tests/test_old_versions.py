"""What this does otherwise on old versions of torch, tried on the one that is here."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpointed import Training
from relay.process.ranks import Ranks
from relay.strategies import base
from sharded import built, of_task, prepared

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


def test_a_stage_greets_no_neighbour_in_its_own_process(ranks: Ranks, tmp_path: Path) -> None:
    """torch 2.9 to 2.11 begins with a number for each neighbour. gloo sends none to its own process."""
    task = of_task("gpt-tiny", prepared("gpt-tiny", tmp_path))
    pipeline: Any = built("pipeline", ranks, task, schedule="zbv_zero_bubble", micro_batches=4)
    (stages, _), *_ = pipeline.known.values()
    assert [stage._get_init_p2p_neighbors_ops() for stage in stages] == [[], []]
