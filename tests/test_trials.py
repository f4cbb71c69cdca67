"""The task as the gate's trials train it: schedules, limits that rounding loosens, and how far a reference goes."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gate_runs import Gates, planned
from relay.equivalence import judged, reference, trial_task
from relay.equivalence.figures import largest, scaled
from relay.equivalence.first_pass import FirstPass
from relay.equivalence.lock_step import LockStep
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import EXACT, OWN_OPTIMIZER, Trial, at_own_batch, trials
from relay.equivalence.verdict import Verdict
from relay.spec.run import Gate, OwnBatch, Training, changed
from relay.task.bound import BoundTask
from test_any_model import written
from trial_runs import gate_of

CPU = torch.device("cpu")


def trial(run: Training, name: str, **changes: Any) -> Trial:
    """The run's trial of that name."""
    return replace({each.name: each for each in trials(run)}[name], **changes)


def in_trial(data: TrialData, name: str) -> TrialTask:
    """The task in that trial."""
    return data.task(trial(data.run, name))


def test_a_schedule_by_epochs_moves_within_the_gate(gates: Gates) -> None:
    """Otherwise a strategy that ignores the learning rate it is told would pass, and train wrong from epoch 2 on."""
    run = changed(planned("cpu", task="princeton-mnist")[0], steps_per_epoch=900)
    steps, folder = run.length.total_steps, gates.dataset(run)
    assert run.length.steps_per_epoch > steps
    for schedule, rates in ((run.task.schedule, 4), ({"kind": "step", "every_epochs": 30, "gamma": 0.1}, 2)):
        slow = replace(run, task=replace(run.task, schedule=schedule))
        algorithm = in_trial(TrialData(slow, folder, CPU), "algorithm")
        assert algorithm.learning_rate(0) == run.task.learning_rate
        assert len({algorithm.learning_rate(step) for step in range(steps)}) >= rates


def test_an_own_batch_is_trained_at_its_own_learning_rate(gates: Gates) -> None:
    """A gate trains at its small batch first, at another rate where the rate grows with the batch."""
    run = planned("cpu")[0]
    assert isinstance(run, Gate)
    data, own = TrialData(run, gates.dataset(run), CPU), OwnBatch(global_batch_size=64, learning_rate=0.04)
    assert in_trial(data, "algorithm").learning_rate(0) == run.task.learning_rate != own.learning_rate
    larger = in_trial(data.of(at_own_batch(run, own)), "algorithm")
    assert (larger.learning_rate(0), larger.own.learning_rate) == (own.learning_rate, own.learning_rate)


CLIPS = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 12), torch.arange(n) % 3) for n in (64, 16)]

    def model(self):
        return nn.Linear(12, 3)

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        class Own(torch.optim.Adam):
            def step(self, closure=None):
                nn.utils.clip_grad_norm_([each for group in self.param_groups for each in group["params"]], MOST)
                return super().step(closure)

        return Own(parameters, self.learning_rate)
"""


def clipping(most: float, place: Path) -> TrialData:
    """Its data, of a task whose own optimiser clips at that norm."""
    task, folder = written(place, CLIPS.replace("MOST", str(most))), place / "data"
    return TrialData(gate_of(task, folder), folder, CPU)


@pytest.mark.parametrize("most", [0.01, 100.0])
def test_a_norm_at_which_the_tasks_own_optimiser_clips_is_reached_in_one_trial_alone(
    most: float, tmp_path: Path
) -> None:
    data = clipping(most, tmp_path)
    norm = data._first_pass.norm
    assert max(norm, data.across * norm) / most > 2
    assert most / min(norm, data.across * norm) > 2


def test_gradients_of_few_scales_are_held_at_once(tmp_path: Path) -> None:
    """All would be many times a model's memory, in each process."""
    held = list[int]()

    def noted(*_: Any) -> None:
        held.append(sum(type(each) is torch.Tensor and each.shape == (3, 12) for each in gc.get_objects()))

    data, hook = clipping(1e30, tmp_path), register_optimizer_step_pre_hook(noted)
    assert data._first_pass.clipped_at is None
    hook.remove()
    assert len(held) == 17
    assert max(held) <= held[0] + 1


def test_a_model_that_computes_on_a_gpu_alone_is_looked_at_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its device is a pretended one, on which the second pass works."""
    data = clipping(1.0, tmp_path)
    data.device = torch.device("cpu", 0)
    passed = FirstPass.of

    def on_gpu(task: BoundTask, first: Any, device: torch.device) -> FirstPass:
        if device == CPU:
            raise RuntimeError("Expected all tensors to be on the same device, but got cuda:0 and cpu")
        return passed(task, first, device)

    monkeypatch.setattr(FirstPass, "of", on_gpu)
    with pytest.raises(RuntimeError):
        data.looks_on  # noqa: B018
    monkeypatch.setattr(trial_task, "is_gpu", lambda _: True)
    assert data.looks_on == data.device


def test_a_limit_follows_rounding_as_long_as_faults_are_larger() -> None:
    """Gradients in fp16 move one step by 3e-4."""
    twin = trial(planned("cpu")[0], "smooth twin")
    for moved, limit, told in (
        (1e-7, 1e-5, None),
        (8e-6, 2.4e-5, None),
        (2e-5, 6e-5, "2e-05, so that 6e-05 is allowed in place of 5e-05"),
        (1e-3, None, "1e-03, so that they are not compared"),
    ):
        its = {"steps": 1, "slowdown": 1, "scale": 1.0, "ended": "", "rounding": {"parameters": moved}, "unsteady": ()}
        assert twin.as_far_as(its).limit_of("parameters") == (limit and pytest.approx(limit))
        notes = [note for note in twin.weakened_by(its) if "rounding alone" in note]
        assert [note.endswith(told or "") for note in notes] == [True] * (told is not None)
    gradient = trial(planned("cpu", precision="bf16")[0], "gradient")
    assert gradient.limit_of("parameters") == gradient.limit


@pytest.mark.parametrize(
    ("samples", "replicas", "devices", "parts"),
    [(16, 4, 8, 8), (20, 4, 8, 4), (6, 2, 4, 2), (100, 16, 16, 16), (8, 4, 1, 4), (12, 1, 1, 1), (36, 2, 8, 6)],
)
def test_a_batch_is_computed_in_equal_parts(samples: int, replicas: int, devices: int, parts: int) -> None:
    """A replica may have more devices than its slice has samples, or a number that does not divide them."""
    assert reference.equal_parts(samples, replicas, devices) == parts


# How far a reference goes: rounding, measured on itself, bounds the steps; what is not finite is no verdict


def in_parts(trial: Trial, data: TrialData, parts: int) -> dict[str, Any]:
    """The same training in so many parts, to its last step whatever rounding does."""
    once = LockStep(replace(trial, most_rounding=None), data, parts)
    once.train()
    return once.result()


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference of losses and parameters."""
    pairs = [(one["parameters"][name], tensor) for name, tensor in other["parameters"].items()]
    return largest([*pairs, (one["losses"], other["losses"])])


@pytest.mark.slow
def test_the_parameters_are_those_of_the_last_step_that_counts(gates: Gates) -> None:
    """Rounding moves the first step by a last place, and more soon after: how much depends on the processor."""
    _, run = planned("cpu")
    data, its = TrialData(run, gates.digits, CPU), trial(run, "algorithm", steps=60, least_steps=1)
    limits = (replace(its, most_rounding=most) for most in (2e-15, 1e-15, 5e-16, 2e-16))
    known = next(found for limit in limits if 0 < (found := reference.train(limit, data))["steps"] < 60)
    assert apart(in_parts(its.as_far_as(known), data, 1), known) == 0


@pytest.mark.slow
def test_the_reference_knows_how_far_rounding_moves_it(gates: Gates) -> None:
    _, run = planned("cpu")
    data = TrialData(run, gates.digits, CPU)
    own = trial(run, "own precision")
    known = reference.train(own, data)
    assert known["steps"] == own.steps
    assert 0 < own.rounding_margin * known["rounding"]["losses"] < own.limit  # a shallow network has no need of more
    single = changed(run, global_batch_size=1)  # which has no halves, but another start
    alone = reference.train(trial(single, "algorithm", steps=5), data.of(single))
    assert alone["steps"] == 5
    assert 0 < alone["rounding"]["parameters"] < EXACT


def as_for_few_samples(operand: torch.Tensor) -> torch.Tensor:
    """The operand of a convolution as a sum of two numbers in bfloat16, in which some libraries compute float32."""
    high = operand.bfloat16().float()
    low = (operand - high).bfloat16().float()
    return operand + (high + low - operand).detach()


@pytest.mark.slow
def test_rounding_is_measured_in_the_divisions_that_are_compared(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    """For few samples a library may take another algorithm, as cuDNN does, which rounds more. Halves are too many."""
    whole = torch.nn.Conv2d.forward

    def forward(layer: torch.nn.Conv2d, inputs: torch.Tensor) -> torch.Tensor:
        if len(inputs) > 4 or inputs.dtype != torch.float32:
            return whole(layer, inputs)
        return torch.nn.functional.conv2d(
            as_for_few_samples(inputs), as_for_few_samples(layer.weight), layer.bias, layer.stride, layer.padding
        )

    monkeypatch.setattr(torch.nn.Conv2d, "forward", forward)
    _, run = planned("cpu")
    data, its = TrialData(run, gates.digits, CPU), trial(run, "own precision", steps=20)
    known = reference.train(its, data)
    assert known["steps"] == 20
    for parts in (4, 16):
        figure = scaled(in_parts(its, data, parts)["losses"], known["losses"])
        assert figure <= 1.5 * known["rounding"]["losses"], parts


# The same number is added to all classes: its gradient is nothing but rounding, and Adam makes a whole step of it.
SHIFTED = """
    def datasets(self, folder):
        return [TensorDataset(numbers(n, 12), torch.arange(n) % 3) for n in (64, 16)]

    def model(self):
        class Shifted(nn.Linear):
            def __init__(self):
                super().__init__(12, 3)
                self.shift = nn.Parameter(torch.zeros(1))

            def forward(self, x):
                return super().forward(x) + self.shift

        return Shifted()

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.Adam(parameters, self.learning_rate, eps=1e-15)
"""


def test_what_the_own_optimiser_makes_of_rounding_alone_is_not_compared_and_all_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference, "trials", lambda *_, **__: [OWN_OPTIMIZER])
    data = TrialData(gate_of(written(tmp_path, SHIFTED), tmp_path / "data"), tmp_path / "data", CPU)
    assert OWN_OPTIMIZER.as_far_as(reference.train(OWN_OPTIMIZER, data)).limit_of("parameters") is None
    trained = reference.of_all_trials(data)[OWN_OPTIMIZER.name]
    assert (trained["unsteady"], trained["steps"]) == (["shift"], OWN_OPTIMIZER.steps)
    compared = OWN_OPTIMIZER.as_far_as(trained)
    for name, passes in (("shift", True), ("weight", False)):
        verdict, whole = Verdict("a-gate"), dict(trained["parameters"])
        whole[name] = whole[name] + 1e-3
        judged._compare(verdict, compared, [], whole, trained)
        assert [part.passed for part in verdict.parts] == [passes]
