"""The equivalence gate: right strategies pass, each planted wrong one is caught, by the part that is made for it."""

from __future__ import annotations

import math
import socket
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gate_runs import FEW_STEPS, FOLDER, Gates, planned, shortened
from relay.base.ending import INTERRUPTED
from relay.datasets import catalogue
from relay.datasets.prepare import prepare
from relay.equivalence import reference
from relay.equivalence.division import Trained, divided
from relay.equivalence.gate import ROUNDING_MARGIN, Verdict, difference, distance
from relay.equivalence.job import run_reference
from relay.equivalence.trials import Trial, TrialData, TrialTask, still, trials
from relay.launch.launcher import launch
from relay.process import sent
from relay.spec import tasks
from relay.spec.identity import source_digest, strategy_sources
from relay.spec.requirements import find
from relay.spec.run import Run, changed
from relay.strategies.base import Replica
from relay.task.task import Task

pytestmark = pytest.mark.usefixtures("one_thread")


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


# What the verdict is made of


@pytest.mark.parametrize(("figure", "passes"), [(0.0, True), (1e-9, True), (1.1e-9, False), (math.inf, False)])
def test_a_part_passes_up_to_its_limit(figure: float, passes: bool) -> None:
    verdict = Verdict("a-gate")
    verdict.compare("algorithm: losses", "largest loss difference", figure, 1e-9)
    told = verdict.as_dict()
    assert told["equivalent"] is passes
    assert told["parts"][0]["passed"] is passes
    assert told["max_loss_difference"] == figure
    assert bool(told["problems"]) is not passes


def test_what_is_no_number_never_passes() -> None:
    verdict = Verdict("a-gate")
    verdict.compare("algorithm: losses", "largest loss difference", math.nan, 1e-9)
    assert verdict.problems == ["algorithm: losses: largest loss difference: nan, allowed is 1e-09"]


def test_a_difference_of_shapes_is_infinite_and_one_nan_is_nan() -> None:
    assert difference(torch.zeros(3), torch.zeros(4)) == math.inf
    assert math.isnan(difference(torch.tensor([0.0, math.nan, 5.0]), torch.zeros(3)))
    assert difference(torch.tensor([1.0, -2.0], dtype=torch.float32), torch.zeros(2, dtype=torch.float64)) == 2.0


def test_a_distance_is_over_all_parameters_and_never_finite_where_one_does_not_fit() -> None:
    pairs = [(torch.tensor([3.0]), torch.zeros(1)), (torch.zeros(2, 2), torch.tensor([[0.0, -4.0], [0.0, 0.0]]))]
    assert distance(pairs) == 5.0
    assert math.isnan(distance([*pairs, (torch.tensor(math.nan), torch.tensor(0.0))]))
    assert distance([*pairs, (torch.zeros(3), torch.zeros(4))]) == math.inf


def test_bytes_sent_are_counted_over_tcp_alone() -> None:
    """Over sockets that were open before and over new ones; not what is received, nor what stays in the machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        for early in (True, False):
            before = sent.by_socket()
            sender = socket.create_connection(server.getsockname())
            receiver, _ = server.accept()
            with closing(sender), closing(receiver):
                if early:
                    before = sent.by_socket()
                assert sent.since(before) == 0
                for _ in range(30):
                    sender.sendall(bytes(10_000))
                    _receive(receiver, 10_000)
                assert 300_000 <= sent.since(before) < 330_000  # a few more where the kernel sends some again
                mine, yours = socket.socketpair()
                with closing(mine), closing(yours):
                    counted = sent.since(before)
                    mine.sendall(bytes(50_000))
                    _receive(yours, 50_000)
                    assert sent.since(before) == counted


def _receive(connection: socket.socket, count: int) -> None:
    while count:
        count -= len(connection.recv(count))


@pytest.mark.parametrize(("used", "problems"), [([], []), ([10], []), ([10, 7], []), ([10, 0], [1])])
def test_a_process_that_leaves_one_of_its_gpus_unused_is_told(used: list[int], problems: list[int]) -> None:
    """On recorded bytes: no GPU is needed to judge them."""
    ranks: Any = SimpleNamespace(rank=0, world_size=1, gather=lambda value: [value])
    trial = Trial(name="algorithm", what="", precision="fp64", steps=1, limit=0, compares=())
    data: Any = SimpleNamespace(indices=lambda _step: torch.arange(4))
    strategy: Any = SimpleNamespace(replica=Replica(0, 1))
    trained = Trained([1.0], [[0, 1, 2, 3]], True, None, {}, used, strategy)
    verdict, run = Verdict("gate"), planned("cpu")[0]
    divided(verdict, run, trial, trained, data, {}, ranks)
    assert verdict.problems == [f"division of work: rank 0 left its GPU {place} unused" for place in problems]


# The task as the trials train it


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
    assert note.startswith("BatchNorm's statistics are frozen in the gate, and the task's learning rate is a tenth;")
    assert task.learning_rate(0) == run.task.learning_rate / 10
    scaled = TrialTask.in_trial(run, trial(run, "scaled"), scale=1.0)
    assert scaled.learning_rate(0) == trial(run, "scaled").sgd_learning_rate  # the trial's own
    group = of_task("resnet18-group-cifar10")
    assert TrialTask.in_trial(group, trial(group, "algorithm"), scale=1.0).learning_rate(0) == group.task.learning_rate


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


def test_the_reference_knows_how_far_rounding_moves_it(gates: Gates) -> None:
    """Batches in halves are the same training, but for rounding, which the run's own precision must allow."""
    run = shortened(planned("cpu")[0], 5)
    data = TrialData(run, gates.digits, torch.device("cpu"))
    algorithm, own = trial(run, "algorithm"), trial(run, "own precision")
    whole, halves = (reference.train(run, algorithm, data, parts) for parts in (1, 2))
    assert torch.allclose(whole["losses"], halves["losses"], rtol=0, atol=1e-13)
    moved = distance(
        [
            (whole["parameters"][name], parameter)
            for name, parameter in TrialTask.in_trial(run, algorithm, scale=1.0).model().state_dict().items()
        ]
    )
    assert whole["update"] == pytest.approx(moved, rel=1e-12)

    rounding = reference.rounding(run, own, data, reference.train(run, own, data)["losses"])
    assert 0 < ROUNDING_MARGIN * rounding < own.limit  # a shallow network has no need of more
    single = changed(run, global_batch_size=1)
    assert reference.rounding(single, own, data, torch.zeros(5)) == 0


@pytest.mark.parametrize("name", ["lenet-cifar10", "utsa-mnist", "resnet18-cifar10", "resnet18-group-cifar10"])
def test_the_smooth_twin_tells_lossy_gradients_from_rounding(name: str, tmp_path: Path) -> None:
    """Over shallow and deep networks, without processes: the mean of four slices' gradients, exact and as fp16."""
    shape = tasks.task(name).input_shape
    dataset = catalogue.dataset("synthetic", shape=shape, train_count=256, test_count=10)
    prepare(dataset, tmp_path / "data")
    run = changed(of_task(name), dataset=dataset, global_batch_size=64, steps_per_epoch=4)
    smooth = trial(run, "smooth twin")
    data = TrialData(run, tmp_path / "data", torch.device("cpu"))
    whole = reference.train(run, smooth, data)
    exact, lossy = (_in_slices(run, smooth, data, 4, dtype) for dtype in (torch.float32, torch.float16))
    for parameters, passes in ((exact, True), (lossy, False)):
        figure = distance([(parameters[n], whole["parameters"][n]) for n in parameters]) / whole["update"]
        print(f"{name}: {figure:.1e} of {smooth.limit:.0e}")
        assert figure < smooth.limit / 1.5 if passes else figure > smooth.limit * 1.5


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


# Right strategies pass, in the gate as it is


def test_one_reference_serves_all_strategies_of_a_task() -> None:
    references = {planned(strategy, devices)[1].id for strategy, devices in (("cpu", 1), ("ddp", 2), ("ddp", 4))}
    assert len(references) == 1
    assert references != {planned("cpu", precision="fp64")[1].id}
    assert references != {planned("cpu", global_batch_size=32)[1].id}


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "devices"), [("cpu", 1), ("ddp", 2), ("ddp", 4)])
def test_a_right_strategy_passes(gates: Gates, strategy: str, devices: int) -> None:
    verdict = gates.verdict(strategy, devices, start=launch)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert {part["name"] for part in verdict["parts"]} == PARTS
    assert all(part["passed"] and part["figure"] <= part["limit"] for part in verdict["parts"])
    assert verdict["max_loss_difference"] <= 1e-9
    assert "200 steps" in verdict["parts"][0]["what"]
    assert verdict["samples_per_rank"] == [64 / devices] * devices
    assert verdict["strategy_source"] == source_digest(strategy_sources(find()[strategy]))
    if devices > 1:
        gradients = 62_006 * 8  # LeNet's parameters, in float64
        ring = 2 * (devices - 1) / devices * gradients  # what a ring's all-reduce sends from each rank
        assert all(0.95 * ring < count < 1.1 * ring for count in verdict["bytes_sent_per_step"])


@pytest.mark.slow
def test_a_right_strategy_of_a_further_folder_passes(gates: Gates) -> None:
    verdict = gates.verdict("right_ddp_by_hand", steps=FEW_STEPS)
    assert verdict["problems"] == []
    assert verdict["equivalent"] is True
    assert verdict["strategy_source"] == source_digest(strategy_sources(FOLDER / "right_ddp_by_hand.py"))


# Wrong strategies are caught

ALGORITHM = {"algorithm: losses", "algorithm: parameters", "evaluation"}
SCALED = {"scaled: losses", "scaled: parameters"}
SMOOTH = {"smooth twin: parameters"}
PARTS = ALGORITHM | SCALED | SMOOTH | {"own precision: losses"}


@dataclass(frozen=True)
class Planted:
    """A wrong strategy: parts that must fail, parts that must pass, and problems told beside the parts."""

    strategy: str
    fails: frozenset[str] | set[str] = frozenset()
    passes: frozenset[str] | set[str] = frozenset()
    says: tuple[str, ...] = ()
    options: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return "-".join([self.strategy.removeprefix("wrong_"), *(str(value) for _, value in self.options)])


WRONG = [
    # What the algorithm's own comparison in float64 sees
    Planted("wrong_average_skipped", fails=PARTS),
    Planted("wrong_sum", fails=PARTS),
    Planted("wrong_learning_rate", fails=ALGORITHM),
    Planted("wrong_single_bias", fails=ALGORITHM),
    Planted(
        "wrong_stops_early",
        fails={"algorithm: parameters", "evaluation"},
        says=(
            f"algorithm: {FEW_STEPS - 1} steps were trained, of {FEW_STEPS}",
            f"division of work: step {FEW_STEPS - 1}: 0 samples reached the loss",
        ),
    ),
    Planted("wrong_nan_loss", fails={"algorithm: losses"}, passes={"algorithm: parameters", *SMOOTH}),
    # What only a scaled loss sees
    Planted("wrong_clipping", fails=SCALED, passes={*ALGORITHM, "own precision: losses"}),
    Planted("wrong_clipping", fails=SCALED, passes=PARTS - SCALED, options=(("max_norm", 25.0),)),
    # What only the run's own precision sees
    Planted("wrong_fp16_compression", fails=SMOOTH, passes=ALGORITHM | SCALED),
    Planted("wrong_bf16_compression", fails=SMOOTH, passes=ALGORITHM | SCALED),
    Planted("wrong_autocast", fails=SMOOTH, passes=ALGORITHM | SCALED),
    # What no number shows: who did the work
    Planted("wrong_alone", fails=PARTS, says=("division of work: rank 0 sent 0 bytes a step; expected 49605 or more",)),
    Planted(
        "wrong_whole_batch",
        passes=PARTS,
        says=("division of work: samples should be divided, but a rank has 100%",),
    ),
    Planted(
        "wrong_whole_batch_undeclared",
        passes=PARTS,
        says=("division of work: nothing is divided: a rank has all samples, parameters, gradients, optimizer",),
    ),
    Planted(
        "wrong_division_claimed",
        passes=PARTS,
        says=("division of work: optimizer should be divided, but a rank has 100%",),
    ),
    Planted(
        "wrong_samples_twice",
        fails=ALGORITHM,
        says=(
            "division of work: step 0: 64 samples reached the loss, the global batch has 64: 2 more than once, 2 never",
        ),
    ),
    Planted(
        "wrong_same_slice",
        fails=ALGORITHM,
        says=(
            "division of work: not exactly one process reports for each replica",
            "division of work: step 0: 64 samples reached the loss, the global batch has 64: "
            "32 more than once, 32 never",
        ),
    ),
    Planted(
        "wrong_last_sample_dropped",
        fails=ALGORITHM,
        says=(
            "division of work: step 0: 62 samples reached the loss, the global batch has 64: 0 more than once, 2 never",
        ),
    ),
    # What no number shows: modes and names
    Planted(
        "wrong_mode",
        passes=PARTS,
        says=(
            "evaluation: it predicts in training mode, where dropout is on",
            "evaluation: it stays in evaluation mode, where dropout is off",
        ),
    ),
    Planted(
        "wrong_evaluation_mode",
        passes=PARTS,
        says=("algorithm: it trains in evaluation mode, where dropout is off",),
    ),
    Planted(
        "wrong_names",
        passes={"algorithm: losses", "evaluation"},
        says=("algorithm: names of parameters differ from the reference's: ['conv1.bias', 'conv1.weight',",),
    ),
    # Failing is no proof of equivalence
    Planted("wrong_crash", says=("the strategy failed in the gate: RuntimeError: no such wrapper",)),
    Planted("wrong_second_rank_crashes", says=("the strategy failed in the gate: RuntimeError: the third step",)),
]


def test_every_wrong_strategy_has_its_test() -> None:
    tested = {planted.strategy for planted in WRONG} | {"wrong_killed"}
    tested.add("wrong_pipeline_static_graph")  # in test_pipelines.py: it takes four processes
    assert tested == {path.stem for path in FOLDER.glob("wrong_*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("planted", WRONG, ids=str)
def test_a_wrong_strategy_is_caught(gates: Gates, planted: Planted) -> None:
    verdict = gates.verdict(planted.strategy, steps=FEW_STEPS, options=dict(planted.options))
    assert verdict["equivalent"] is False
    failed = {part["name"] for part in verdict["parts"] if not part["passed"]}
    passed = {part["name"] for part in verdict["parts"] if part["passed"]}
    assert planted.fails <= failed
    assert planted.passes <= passed
    # Each failed part is told as a problem, and nothing else but what the strategy is planted for.
    for part in planted.fails:
        assert any(problem.startswith(f"{part}: ") for problem in verdict["problems"])
    for text in planted.says:
        assert any(problem.startswith(text) for problem in verdict["problems"]), verdict["problems"]
    if not planted.says:
        assert len(verdict["problems"]) == len(failed)


@pytest.mark.slow
def test_a_gate_that_is_killed_has_no_verdict_and_is_worth_a_retry(
    gates: Gates, capfd: pytest.CaptureFixture[str]
) -> None:
    status, output = gates.judge("wrong_killed", steps=FEW_STEPS)
    assert status == INTERRUPTED
    assert not output.exists()
    assert "its processes were killed" in capfd.readouterr().err


@pytest.mark.slow
def test_a_reference_without_its_dataset_says_so_and_is_not_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, asked = planned("cpu")
    asked.write(tmp_path / "reference.json")
    output = tmp_path / "reference.pt"
    assert run_reference(tmp_path / "reference.json", tmp_path, output, attempt=1) == 1
    assert not output.exists()
    first = capfd.readouterr().err
    assert "Traceback" not in first
    (told,) = [line for line in first.splitlines() if line.startswith("reference failed: ")]
    assert str(tmp_path / "datasets" / "digits") in told
    assert run_reference(tmp_path / "reference.json", tmp_path, output, attempt=2) == 1
    assert capfd.readouterr().err == told.replace("failed:", "failed before, not tried again:") + "\n"
