"""Old versions of torch: what their torchrun understands. `scripts/torch_versions.py` tries every strategy on them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from torch.distributed.run import get_args_parser

import torch_versions
from gate_runs import planned
from relay.launch.command_lines import Meeting, command
from relay.launch.torchrun import WORKER

KNOWN = json.loads(torch_versions.OPTIONS.read_text())


def arguments(nodes: int) -> list[str]:
    """What torchrun gets to read, on one node or on several."""
    gate, _ = planned("ddp")
    run = replace(gate, shape=replace(gate.shape, nodes=nodes, launcher="torchrun"))
    words = command(run, ["python"], ["role", "work"], Meeting("10.0.0.1", 20_000, 1))
    first = words.index("relay.launch.torchrun") + 1
    last = next(place for place in range(first, len(words)) if words[place : place + 2] == WORKER)
    return words[first:last]


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
