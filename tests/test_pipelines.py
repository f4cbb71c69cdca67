"""Every way of splitting a network's layers trains it as one process does; and what the planner is told of stages."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gate_parts import Asked, between_steps, verdicts
from gate_runs import Gates
from own_tasks import OWN, spec, task
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.requirements import SCHEDULES
from trial_runs import gate_of

# What is trained, evaluated, saved and gone on with, held against one plain process by a part of the gate


def split(folder: Path, strategy: str, name: str, processes: int = 2, **options: Any) -> tuple[Any, Path]:
    """The gate of a file that a user could bring, small, and its data; without dropout, which has tests of its own."""
    unet = {"dropout": 0.0, "width": 2, "side": 16}
    small = {"unet": unet, "lstm": {"dropout": 0.0, "width": 8}, "table": {"width": 8}}.get(name, {})
    own = spec(str(OWN / f"{name}.py"), **small)
    return gate_of(own, folder / name, strategy, processes, options=options), folder / name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_split_a_model_of_ones_own(tmp_path: Path) -> None:
    """Skip connections, BatchNorm by micro-batch, dict batches, and a length that differs from batch to batch."""
    places = {"schedule": "interleaved_zero_bubble", "cut_before": "down2, middle, up1"}
    found = between_steps(
        tmp_path,
        split(tmp_path, "pipeline", "unet", **places),
        split(tmp_path, "pipeline", "table", schedule="dualpipe_v"),
        split(tmp_path, "model_parallel", "lstm"),
    )
    assert [verdict["problems"] for verdict in found] == [[], [], []]
    assert "as trained: statistics" in {part["name"] for part in found[0]["parts"]}


@pytest.mark.slow
def test_a_parameter_beside_the_layers_is_averaged_and_updated_with_its_stage(tmp_path: Path) -> None:
    """Each process has two stages, whose parameters change places when replicas average their gradients."""
    rooted = split(tmp_path, "pipeline_ddp", "rooted", 4, schedule="interleaved_1f1b", stages=2)
    (verdict,) = between_steps(tmp_path, rooted)
    assert verdict["problems"] == []
    assert all(part["figure"] <= 1e-12 for part in verdict["parts"] if part["limit"] == 1e-9)


@pytest.mark.long
def test_four_processes_split_a_deep_network_as_one_has_it(gates: Gates, tmp_path: Path) -> None:
    """Only this trains by every schedule on four."""
    deep = "gpt-deep-tiny"  # 11 layers with parameters for up to 8 stages
    asked = [Asked("pipeline", deep, {"schedule": name, "micro_batches": 8}) for name in SCHEDULES]
    asked += [Asked("pipeline_ddp", deep, {"schedule": name, "stages": 2}) for name in SCHEDULES]
    asked.append(Asked("model_parallel", deep))
    found = verdicts(gates, tmp_path, asked, 4)
    assert {str(each): found(each)["problems"] for each in asked} == {str(each): [] for each in asked}


@pytest.mark.long
def test_the_gate_fails_stages_whose_static_graph_averages_too_early(gates: Gates) -> None:
    """Only this plants a fault in a pipeline with replicas."""
    verdict = gates.verdict("wrong_pipeline_static_graph", 4, steps=10, options={"schedule": "gpipe"})
    assert verdict["equivalent"] is False
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    assert {"algorithm: losses", "algorithm: parameters"} <= failed


# What is declared


@pytest.mark.parametrize("name", [name for name in SCHEDULES if SCHEDULES[name].rounds or SCHEDULES[name].filled])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 6])
def test_the_planner_knows_what_torch_refuses(ranks: Ranks, name: str, micro_batches: int) -> None:
    """On three processes: nothing is skipped in vain, and no job learns that its micro-batches do not fit."""
    from torch.distributed.pipelining.schedules import get_schedule_class  # which takes a second

    schedule, processes = SCHEDULES[name], 3
    stages = [Told(index, processes * schedule.stages, processes) for index in range(schedule.stages)]
    skipped = [*schedule.problems(processes, micro_batches, False, False)]
    with pytest.raises(ValueError) if skipped else nullcontext():
        get_schedule_class(schedule.name)(stages if schedule.stages > 1 else stages[0], micro_batches)


@dataclass
class Told:
    """What a schedule asks of a stage before anything is computed."""

    stage_index: int
    num_stages: int
    group_size: int
    group: Any = None
    group_rank: int = 0
    is_first: bool = False
    is_last: bool = False
    has_backward: bool = False
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    submod: nn.Module = field(default_factory=nn.Identity)
    stage_index_to_group_rank: dict[int, int] = field(default_factory=dict)


@pytest.mark.slow
def test_the_cut_of_a_run_is_measured_once(ranks: Ranks) -> None:
    """A later job is told what the first one has measured, and cuts at the same places."""
    first = strategies.load("model_parallel")(task(spec("lenet-digits")), ranks, 16, {})
    told = {"call_seconds": dict.fromkeys(first.measured["call_seconds"], 1.0)}
    later = strategies.load("model_parallel")(task(spec("lenet-digits")), ranks, 16, {}, told)
    assert later.measured == told
