"""The task as the gate's trials train it: ids, slices, what is switched off, smooth twins, references."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gate_runs import Gates, planned, shortened
from relay.datasets import catalogue
from relay.datasets.prepare import prepare
from relay.equivalence import reference
from relay.equivalence.gate import distance
from relay.equivalence.trial_task import TrialData, TrialTask, still
from relay.equivalence.trials import Trial, trials
from relay.spec import tasks
from relay.spec.run import Run, changed
from relay.task.task import Task


def of_task(name: str, **changes: object) -> Run:
    """The short gate of a single process, on another task."""
    gate, _ = planned("cpu")
    task = tasks.task(name)
    dataset = catalogue.dataset(task.dataset)
    steps_per_epoch = dataset.train_count // task.global_batch_size
    run = changed(gate, task=task, dataset=dataset, steps_per_epoch=steps_per_epoch)
    return changed(run, global_batch_size=task.global_batch_size, **changes)


def trial(run: Run, name: str) -> Trial:
    """The trial of that name."""
    return {t.name: t for t in trials(run)}[name]


@pytest.mark.parametrize("name", ["lenet-digits", "linear-random10"])
def test_ids_ride_in_the_targets(name: str) -> None:
    run = of_task(name)
    task = TrialTask.in_trial(run, trial(run, "algorithm"), scale=1.0)
    ids = torch.tensor([7, 0, run.dataset.train_count - 1, 59_999, 3])
    if run.dataset.classes:
        outputs, targets = torch.randn(5, 10, dtype=torch.float64), torch.tensor([0, 9, 9, 0, 5])
    else:
        outputs, targets = torch.randn(5, 1, dtype=torch.float64), torch.randn(5, 1)
    carrying = task.with_ids(targets, ids)
    loss = task.loss(outputs[:3], carrying[:3])
    assert task.seen == ids[:3].tolist()
    assert loss == Task.loss(task, outputs[:3], targets[:3])
    task.loss(outputs[3:], carrying[3:])  # as a second micro-batch
    assert task.seen == ids.tolist()


def test_scaled_is_the_same_training_bit_for_bit(gates: Gates) -> None:
    run = shortened(planned("cpu")[0], 5)
    scaled = trial(run, "scaled")
    data = TrialData(run, gates.digits, torch.device("cpu"))
    curves = []
    for scale in (1.0, scaled.scale):
        task = TrialTask.in_trial(run, scaled, scale=scale)
        model = task.model()
        optimizer = task.optimizer(model.parameters())
        losses = []
        for inputs, targets in data.batches(task, 5, 0, 1):
            optimizer.zero_grad()
            loss = task.loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item() / scale)
        curves.append(losses)
    assert scaled.scale > 1000
    assert curves[0] == curves[1]
    assert curves[0][0] != curves[0][-1]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_slices_of_real_data_are_the_global_batch(gates: Gates, count: int) -> None:
    run, _ = planned("cpu")
    task = TrialTask.in_trial(run, trial(run, "algorithm"), scale=1.0)
    data = TrialData(run, gates.digits, torch.device("cpu"))
    whole = list(data.batches(task, 25, 0, 1))  # into the second epoch
    slices = [list(data.batches(task, 25, index, count)) for index in range(count)]
    for step, (inputs, targets) in enumerate(whole):
        assert torch.equal(torch.cat([mine[step][0] for mine in slices]), inputs)
        assert torch.equal(torch.cat([mine[step][1] for mine in slices]), targets)
        assert sorted((targets // 10).tolist()) == sorted(data.indices(step).tolist())
        assert len(inputs) == run.batch.global_batch_size


@pytest.mark.parametrize("name", ["utsa-mnist", "princeton-mnist"])
def test_dropout_is_off_in_the_gate_and_the_verdict_says_so(name: str) -> None:
    run = of_task(name)
    task = TrialTask.in_trial(run, trial(run, "algorithm"), scale=1.0)
    inputs = torch.randn(4, *run.task.input_shape, dtype=torch.float64)
    plain, stilled = Task.of(run).model().double(), task.model()
    assert not torch.equal(plain(inputs), plain(inputs))
    assert torch.equal(stilled(inputs), stilled(inputs))
    assert torch.equal(stilled(inputs), stilled.eval()(inputs))
    assert task.notes == ["dropout is switched off in the gate"]
    assert _same(plain.state_dict(), stilled.state_dict())


def test_batch_normalisation_is_frozen_in_the_gate_and_the_verdict_says_so() -> None:
    run = of_task("resnet18-cifar10")
    task = TrialTask.in_trial(run, trial(run, "algorithm"), scale=1.0)
    model = task.model()
    inputs = torch.randn(6, *run.task.input_shape, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    statistics = [name for name in before if "running_" in name]
    assert not torch.equal(before["norm1.running_mean"], torch.zeros_like(before["norm1.running_mean"]))

    assert model.training
    assert torch.allclose(model(inputs)[:2], model(inputs[:2]), rtol=0, atol=1e-12)  # none sees its neighbours
    model(inputs).square().sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    after = model.state_dict()
    assert _same({name: before[name] for name in statistics}, {name: after[name] for name in statistics})
    assert not torch.equal(after["norm1.weight"], before["norm1.weight"])  # weight and bias are trained

    assert list(before) == list(Task.of(run).model().state_dict())
    (note,) = task.notes
    assert note.startswith("BatchNorm's statistics are frozen in the gate;")


def test_a_network_without_either_is_left_alone() -> None:
    run, _ = planned("cpu")
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    assert still(model, (1, 2, 2), seed=1) == []
    task = TrialTask.in_trial(run, trial(run, "algorithm"), scale=1.0)
    assert _same(task.model().state_dict(), Task.of(run).model().state_dict())
    assert task.notes == []


@pytest.mark.parametrize("name", ["lenet-digits", "princeton-mnist", "resnet18-cifar10"])
def test_the_smooth_twin_has_no_kinks_and_the_same_parameters(name: str) -> None:
    run = of_task(name)
    rough, smooth = (
        TrialTask.in_trial(run, trial(run, name), scale=1.0).model() for name in ("own precision", "smooth twin")
    )
    kinds = {type(module) for module in smooth.modules()}
    assert nn.Tanh in kinds
    assert not kinds & {nn.ReLU, nn.MaxPool2d}
    assert nn.ReLU in {type(module) for module in rough.modules()}
    assert _same(*({name: p.detach() for name, p in model.named_parameters()} for model in (rough, smooth)))
    inputs = torch.randn(2, *run.task.input_shape)
    assert smooth(inputs).shape == rough(inputs).shape == (2, 10)


def test_a_schedule_by_epochs_moves_within_the_gate() -> None:
    """Otherwise a strategy that ignores the learning rate it is told would pass, and train wrong from epoch 2 on."""
    run = of_task("princeton-mnist")
    assert run.length.steps_per_epoch > run.length.total_steps
    algorithm = TrialTask.in_trial(run, trial(run, "algorithm"), scale=1.0)
    rates = [algorithm.learning_rate(step) for step in range(run.length.total_steps)]
    assert rates[0] == run.task.learning_rate
    assert len(set(rates)) == 4
    slow = replace(run, task=replace(run.task, schedule={"kind": "step", "every_epochs": 30, "gamma": 0.1}))
    algorithm = TrialTask.in_trial(slow, trial(slow, "algorithm"), scale=1.0)
    assert len({algorithm.learning_rate(step) for step in range(run.length.total_steps)}) > 1


def test_lossy_communication_is_asked_about_in_the_runs_own_precision() -> None:
    run, _ = planned("cpu")
    assert [t.name for t in trials(run)] == ["algorithm", "scaled", "own precision", "smooth twin"]
    exact, _ = planned("cpu", precision="fp64")
    assert [t.name for t in trials(exact)] == ["algorithm", "scaled"]
    assert all(t.precision == "fp64" for t in trials(exact))


@pytest.mark.parametrize("name", ["lenet-cifar10", "utsa-mnist", "resnet18-cifar10", "resnet18-group-cifar10"])
def test_the_smooth_twin_tells_lossy_gradients_from_rounding(name: str, tmp_path: Path) -> None:
    """Over shallow and deep networks, without processes: the mean of four slices' gradients, exact and as fp16."""
    shape = tasks.task(name).input_shape
    dataset = catalogue.dataset("synthetic", shape=shape, train_count=256, test_count=10)
    prepare(dataset, tmp_path / "data")
    run = changed(of_task(name), dataset=dataset, global_batch_size=64, steps_per_epoch=4)
    data = TrialData(run, tmp_path / "data", torch.device("cpu"))
    whole = reference.train(run, trial(run, "smooth twin"), data)
    smooth = trial(run, "smooth twin").as_far_as(whole)
    exact, lossy = (_in_slices(run, smooth, data, 4, dtype) for dtype in (torch.float32, torch.float16))
    for parameters, passes in ((exact, True), (lossy, False)):
        figure = distance([(parameters[n], whole["parameters"][n]) for n in parameters]) / whole["update"]
        print(f"{name}: {figure:.1e} of {smooth.limit:.0e}")
        assert figure < smooth.limit / 1.5 if passes else figure > smooth.limit * 1.5


@pytest.mark.parametrize(
    ("moved", "limit", "told"),
    [
        (5e-6, 5e-5, None),
        (2e-5, 6e-5, "2e-05, so that 6e-05 is allowed in place of 5e-05"),
        (1e-3, None, "1e-03, so that they are not compared"),
    ],
)
def test_rounding_loosens_a_limit_only_as_long_as_faults_are_larger(
    moved: float, limit: float | None, told: str | None
) -> None:
    """Gradients in fp16 move one step by 3e-4."""
    run, _ = planned("cpu")
    twin = trial(run, "smooth twin")
    known = {"steps": 1, "slowdown": 1, "ended": "", "rounding": {"parameters": moved}}
    found = twin.as_far_as(known).limit_of("parameters")
    assert found == (limit and pytest.approx(limit))
    notes = [note for note in twin.weakened_by(known) if "rounding alone" in note]
    assert [note.endswith(told or "") for note in notes] == [True] * (told is not None)
    (gradient,) = (each for each in trials(planned("cpu", precision="bf16")[0]) if each.name == "gradient")
    assert gradient.limit_of("parameters") == gradient.limit


def _in_slices(run: Run, asked: Trial, data: TrialData, count: int, sent: torch.dtype) -> dict[str, torch.Tensor]:
    """The parameters after a trial in which slices' gradients are averaged in that type."""
    task = TrialTask.in_trial(run, asked, scale=1.0)
    model = task.model()
    parameters = dict(model.named_parameters())
    optimizer = task.optimizer(parameters.values())
    for slices in zip(*(data.batches(task, asked.steps, index, count) for index in range(count)), strict=True):
        sums = {name: torch.zeros_like(p, dtype=sent) for name, p in parameters.items()}
        for inputs, targets in slices:
            optimizer.zero_grad()
            task.loss(model(inputs), targets).backward()
            for name, p in parameters.items():
                sums[name] += p.grad.to(sent)
        for name, p in parameters.items():
            p.grad = (sums[name] / count).to(p.dtype)
        optimizer.step()
    return {name: p.detach() for name, p in parameters.items()}


def test_a_reference_with_dropout_is_deterministic(tmp_path: Path) -> None:
    dataset = catalogue.dataset("synthetic", shape=(1, 28, 28), train_count=64, test_count=10)
    prepare(dataset, tmp_path / "data")
    run = shortened(of_task("princeton-mnist"), 4)
    run = changed(run, dataset=dataset, global_batch_size=16, steps_per_epoch=4)
    trained = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        data = TrialData(run, tmp_path / "data", torch.device("cpu"))
        trained.append(reference.train(run, trial(run, "algorithm"), data))
    assert torch.equal(trained[0]["losses"], trained[1]["losses"])
    assert trained[0]["losses"].shape == (4,)
    assert torch.equal(trained[0]["outputs"], trained[1]["outputs"])
    assert _same(trained[0]["parameters"], trained[1]["parameters"])


def _same(mine: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(mine) == list(other) and all(torch.equal(tensor, other[name]) for name, tensor in mine.items())
