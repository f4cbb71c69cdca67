"""A comparison shrunk to a laptop: what changes, and what stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from relay.base.errors import UserError
from relay.planning import shrink
from relay.planning.config import Config, load

pytest_plugins = ["plans"]


def shrunk(*comparisons: dict[str, Any], **keys: Any) -> Config:
    return shrink.applied(load({"shrink": True, "comparisons": list(comparisons), **keys}))


def test_without_the_key_nothing_changes() -> None:
    given = load({"epochs": 30, "repeats": 7, "shrunk": {"epochs": 1}})
    assert shrink.applied(given) is given


def test_it_is_short_and_on_cpus() -> None:
    config = shrunk({"strategy": "cpu", "repeats": 9}, epochs=30, repeats=7, device="cuda")
    assert (config.device, config.epochs, config.repeats, config.gate.steps) == ("cpu", 1, 2, 40)
    assert config.comparisons[0].repeats == 2
    assert shrunk({"strategy": "cpu"}, epochs=0.5, repeats=1).repeats == 1


def test_nodes_become_processes_of_one_machine() -> None:
    one = {"strategy": "ddp", "nodes": [1, 2, 3], "devices_per_node": 2, "cpus_per_task": [1, 2, 8]}
    (comparison,) = shrunk(one).comparisons
    assert comparison.nodes == [1]
    assert comparison.devices_per_node == [2, 4]
    assert comparison.cpus_per_task == [1, 2]
    assert comparison.data_workers == [None]


def test_a_strategy_for_gpus_becomes_the_one_that_stands_for_it() -> None:
    pipelined = {"strategy": "model_parallel_in_process", "devices_per_node": 2, "options": {"micro_batches": 4}}
    config = shrunk({"strategy": "cpu"}, {"strategy": "single_gpu"}, {"strategy": "data_parallel"}, pipelined)
    assert [each.strategy for each in config.comparisons] == ["cpu", "ddp", "model_parallel"]
    assert config.comparisons[2].options == {}  # model_parallel has none


def test_what_a_config_says_for_itself_comes_first() -> None:
    own = {"task": "lenet-synthetic", "epochs": 3, "task_options": {"train_count": 640}}
    config = shrunk({"strategy": "cpu"}, task="lenet-cifar10", epochs=30, task_options={"classes": 5}, shrunk=own)
    assert (config.task, config.epochs) == ("lenet-synthetic", 3)
    assert config.task_options == {"train_count": [640], "classes": [5]}


@pytest.mark.parametrize("shrinks", [True, False])
def test_a_mistake_in_it_is_one_line_whether_it_is_used_or_not(shrinks: bool) -> None:
    with pytest.raises(UserError) as caught:
        shrink.applied(load({"shrink": shrinks, "shrunk": {"epochs": "few"}}))
    (line,) = str(caught.value).splitlines()
    assert line.startswith("config: shrunk: epochs: 'few' is not allowed; allowed: a number")
