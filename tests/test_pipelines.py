"""Every way of splitting a network's layers trains it as one process does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from gate_runs import Gates
from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.requirements import SCHEDULES
from relay.spec.tasks import TaskSpec
from relay.strategies._clipping import local
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from short_tasks import STEPS, task


def cut_up(trained: BoundTask, count: int) -> list[Batch]:
    """Global batches, always the same ones."""
    return batches.chunks(trained.example(STEPS * count), STEPS)


Case = tuple[str, str, dict[str, Any], dict[str, Any]]  # strategy, task, options, the task's settings
BATCH = 16
OWN = Path(__file__).parent / "tasks"
NORMALISED = ("unet", "resnet50")


def brought(name: str, **settings: Any) -> BoundTask:
    """A built-in task, or one of the files that a user could bring; without dropout, which each process draws."""
    if not (OWN / f"{name}.py").is_file():
        return task(name, **settings)
    small = {"resnet50": {"base_width": 4, "side": 32}, "table": {}, "rooted": {}}.get(name, {"dropout": 0.0})
    spec = TaskSpec(name=name, file=str(OWN / f"{name}.py"), options=small, global_batch_size=16, learning_rate=1e-3)
    folder = Path(tempfile.mkdtemp())
    made = BoundTask(spec, 5, "fp64", 10, STEPS, folder=folder, **settings)
    made.own.prepare(folder)
    return made


def train_alone(trained: BoundTask, parts: int) -> dict[str, Any]:
    """The plain loop of one process; each batch in so many parts, which matters to BatchNorm alone."""
    model = trained.model()
    optimizer, losses = trained.optimizer(model.parameters()), []
    for batch in cut_up(trained, BATCH):
        optimizer.zero_grad()
        found = []
        for part in batches.chunks(batch, parts):
            found.append(trained.loss(trained.outputs(model, part), part) / parts)
            found[-1].backward()
        optimizer.step()
        losses.append(sum(loss.item() for loss in found))
    model.eval()
    with torch.no_grad():
        outputs = trained.outputs(model, cut_up(trained, BATCH)[0])
    held = sum(parameter.nbytes for parameter in model.parameters())  # without BatchNorm's statistics
    return {"losses": losses, "parameters": model.state_dict(), "outputs": outputs, "held": held}


def train_split(case: Case, ranks: Ranks, folder: Path) -> dict[str, Any] | None:
    """The same under a strategy, on each rank; what rank 0 has gathered.

    On the way, the state after two steps is saved, and a second training goes on from it to the same end.
    """
    name, task_name, options, settings = case
    trained = brought(task_name, **settings)
    strategy = strategies.load(name)(trained, ranks, BATCH, options)
    replica, losses = strategy.replica, []
    mine = [batches.chunks(batch, replica.count)[replica.index] for batch in cut_up(trained, BATCH)]
    losses += [loss.item() for loss in strategy.train_steps(iter(mine[:2]))]
    strategy.save(folder).result()
    losses += [loss.item() for loss in strategy.train_steps(iter(mine[2:]))]

    resumed = strategies.load(name)(trained, ranks, BATCH, options, strategy.measured)
    resumed.load(folder)
    for _ in resumed.train_steps(iter(mine[2:])):
        pass
    ended, again = strategy.model.state_dict(), resumed.model.state_dict()
    same = list(ended) == list(again) and all(torch.equal(local(ended[n]), local(again[n])) for n in ended)

    outputs = strategy.predict(mine[0])
    told = ranks.gather((replica, losses, outputs if replica.reports else None, same, strategy.footprint()))
    parameters = strategy.whole_model()
    if ranks.rank != 0:
        return None
    reporting = sorted((one for one in told if one[0].reports), key=lambda one: one[0].index)
    return {
        "replicas": [one[0].index for one in reporting],
        "losses": [sum(step) / len(step) for step in zip(*(one[1] for one in reporting), strict=True)],
        "outputs": batches.joined([one[2] for one in reporting]),
        "parameters": parameters,
        "resumed": all(one[3] for one in told),
        "silent": all(torch.tensor(one[1]).isnan().all() for one in told if not one[0].reports),
        "held": [one[4]["parameters"] for one in told],
    }


def _train_all(ranks: Ranks, folder: Path, cases: list[Case]) -> None:
    for number, case in enumerate(cases):
        found = train_split(case, ranks, folder / str(number))
        if found is not None:
            torch.save(found, folder / f"{number}.pt")


def check(world_size: int, cases: list[Case], folder: Path) -> None:
    """Train each case over so many processes; all must be as one process trains it, and resumed bit for bit."""
    spawned(_train_all, world_size, folder, cases)
    alone: dict[str, dict[str, Any]] = {}
    for number, case in enumerate(cases):
        _, task_name, options, settings = case
        trained = brought(task_name, **settings)
        found = torch.load(folder / f"{number}.pt")
        micro_batches = options.get("micro_batches", 4 if "pipeline" in case[0] else 1)
        parts = micro_batches if task_name in NORMALISED else 1
        key = f"{task_name} {settings} {parts}"
        if key not in alone:
            alone[key] = train_alone(trained, parts)
        expected = alone[key]
        limit = 1e-12 if trained.dtype == torch.float64 else 2e-2  # bf16 rounds each micro-batch's sums by itself
        assert found["losses"] == pytest.approx(expected["losses"], rel=0, abs=limit), case
        assert set(found["parameters"]) == set(expected["parameters"]), case
        for parameter, tensor in expected["parameters"].items():
            assert torch.allclose(found["parameters"][parameter], tensor, rtol=0, atol=limit), (case, parameter)
        for pair in zip(tree_leaves(found["outputs"]), tree_leaves(expected["outputs"]), strict=True):
            assert torch.allclose(pair[0].float(), pair[1].float(), rtol=0, atol=limit), case
        assert found["replicas"] == list(range(world_size // options.get("stages", world_size))), case
        assert found["silent"], case
        assert found["resumed"], case
        assert sum(found["held"]) == expected["held"] * len(found["replicas"]), case
        assert max(found["held"]) < expected["held"], case


OWN_MODELS: list[tuple[str, dict[str, Any]]] = [
    ("unet", {"schedule": "interleaved_zero_bubble", "cut_before": "down2, middle, up1"}),
    ("table", {"schedule": "dualpipe_v"}),
]


@pytest.mark.slow
def test_two_processes_split_a_model_of_ones_own(tmp_path: Path) -> None:
    """Skip connections, BatchNorm by micro-batch, dict batches, and a length that differs from batch to batch."""
    cases: list[Case] = [("pipeline", name, options, {}) for name, options in OWN_MODELS]
    check(2, [*cases, ("model_parallel", "lstm", {}, {})], tmp_path)


@pytest.mark.slow
def test_a_parameter_beside_the_layers_is_averaged_and_updated_with_its_stage(tmp_path: Path) -> None:
    """Each process has two stages, whose parameters change places when replicas average their gradients."""
    check(4, [("pipeline_ddp", "rooted", {"schedule": "interleaved_1f1b", "stages": 2}, {})], tmp_path)


@pytest.mark.long
def test_four_processes_split_a_deep_network_as_one_has_it(tmp_path: Path) -> None:
    """Only this trains by every schedule on four."""
    deep = "gpt-deep-tiny"  # 11 layers with parameters for up to 8 stages
    cases: list[Case] = [("pipeline", deep, {"schedule": name, "micro_batches": 8}, {}) for name in SCHEDULES]
    cases += [("pipeline_ddp", deep, {"schedule": name, "stages": 2}, {}) for name in SCHEDULES]
    check(4, [*cases, ("model_parallel", deep, {}, {})], tmp_path)


@pytest.mark.long
def test_the_gate_fails_stages_whose_static_graph_averages_too_early(gates: Gates) -> None:
    """Only this plants a fault in a pipeline with replicas."""
    verdict = gates.verdict("wrong_pipeline_static_graph", 4, steps=10, options={"schedule": "gpipe"})
    assert verdict["equivalent"] is False
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    assert {"algorithm: losses", "algorithm: parameters"} <= failed
