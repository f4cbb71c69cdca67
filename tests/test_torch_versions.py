"""Old versions of torch: what their torchrun understands. `scripts/torch_versions.py` tries every strategy on them."""

import json
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.run import get_args_parser

import torch_versions
from checkpointed import Training
from gate_runs import planned
from relay.chain import sharded
from relay.launch.command_lines import Meeting, command
from relay.process.ranks import Ranks

KNOWN = json.loads(torch_versions.OPTIONS.read_text())


def arguments(nodes: int) -> list[str]:
    """What torchrun gets to read, on one node or on several."""
    gate, _ = planned("ddp")
    run = replace(gate, shape=replace(gate.shape, nodes=nodes, launcher="torchrun"))
    words = command(run, ["python"], ["role", "work"], Meeting("10.0.0.1", 20_000, 1))
    return words[words.index("relay.launch.torchrun") + 1 : words.index("relay.launch.worker") - 1]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("version", torch_versions.VERSIONS)
def test_torchrun_of_an_old_version_knows_our_arguments(version: str, nodes: int) -> None:
    """Of each version, what its own parser knows was written down."""
    given = [word.partition("=")[0] for word in arguments(nodes)]
    assert len(given) >= 2
    assert set(given) <= set(KNOWN[version])


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_torchrun_that_is_here_takes_them(nodes: int) -> None:
    assert get_args_parser().parse_args([*arguments(nodes), "script.py"]).training_script == "script.py"


# What this does otherwise on old versions of torch, tried on the one that is here


def test_a_version_that_writes_from_the_living_tensors_gets_copies(
    ranks: Ranks, prepared: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.5's `async_save` reads tensors in host memory as it writes them, and the training goes on meanwhile."""
    given: list[dict[str, Any]] = []

    def later(state: dict[str, Any], **_: Any) -> Future[Any]:
        given.append(state)
        return Future()

    monkeypatch.setattr(sharded, "COPIES_HOST_TENSORS", False)
    monkeypatch.setattr(sharded.dcp, "async_save", later)
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
