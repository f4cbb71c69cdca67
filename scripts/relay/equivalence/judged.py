"""One trial of the gate: the strategy trains it as far as its reference went, and is compared with it.

The trial in the run's own precision is trained once more where a run's steps are captured as a CUDA graph: a step that
is replayed has to train as one that is not. One that failed is trained once more beside a plain training, to say where
the two part; that costs nothing where all is well.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from relay.equivalence.course import Course, EndedEarlyError, Observed, cloned
from relay.equivalence.division import computed, divided
from relay.equivalence.figures import difference, distance, each_apart, largest, scaled, share
from relay.equivalence.plain import Plain, State, Tensors
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import EXACT, Trial
from relay.equivalence.verdict import Part, Verdict
from relay.process import system
from relay.process.devices import is_gpu
from relay.process.ranks import Ranks
from relay.spec.run import Training
from relay.strategies._captured import Captured
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask

# How many times as far as rounding moves them predictions may be, in float64; beyond the most, nothing would be seen.
OUTPUTS_MARGIN, MOST_OF_OUTPUTS = 100, 1e-3
RELATIVE_LIMIT, RELATIVE_MARGIN = 1e-6, 10  # and how far parameters may be; for lenet, right strategies are below 1e-14
REPLAYED = "its steps captured as a CUDA graph and replayed (`cuda_graph: false` trains without)"


def judge(verdict: Verdict, trial: Trial, data: TrialData, reference: dict[str, Any], ranks: Ranks) -> list[str]:
    """Train one trial as far as its reference went, and compare. The algorithm's also shows the division of work.

    Returns what the trial has changed in the network. Collective.
    """
    verdict.notes += trial.weakened_by(reference)
    trial = trial.as_far_as(reference)
    course = train(trial, data, ranks, counted=bool(reference["work"]))
    whole = cloned(course.strategy)
    if trial.name == "algorithm":
        course.predict(trial.steps, step=0, whole=True)
    observed = ranks.collect(course.observed())
    if observed:
        _compare(verdict, trial, observed, whole, reference)
        if trial.name == "algorithm":
            _evaluated(verdict, observed, reference, data, course.task)
            divided(verdict, trial, observed, data, reference["footprint"])
    if observed and reference["work"]:
        computed(verdict, data.run, observed, reference["work"], reference["footprint"]["optimizer"])
    _print(verdict, trial, data.run)
    return course.task.notes


def train(
    trial: Trial,
    data: TrialData,
    ranks: Ranks,
    watched: AbstractContextManager[object] | None = None,
    *,
    counted: bool = False,
) -> Course:
    """Train one trial under the strategy, through the same contract as a run's training. Collective.

    `watched` is entered for the steps alone, when all is built. With `counted`, operations are.
    """
    idle = _held_before(ranks.devices)
    course = Course(data, ranks, data.task(trial, scale=trial.scale), lossy=trial.lossy, counted=counted)
    course.build()
    ranks.barrier()
    before = system.sent_by_socket()
    with watched or nullcontext(), suppress(EndedEarlyError):
        for _ in course.steps(0, trial.steps):
            pass
    course.seen.footprint = course.strategy.footprint()  # a prediction may gather what is sharded
    # Several processes always have sockets, the control group's: where none is seen, the kernel cannot tell.
    course.seen.bytes_sent = system.sent_since(before) if before or ranks.world_size == 1 else None
    peaks = ((torch.cuda.max_memory_allocated(device), held) for device, held in zip(ranks.devices, idle, strict=False))
    course.seen.used_bytes = [peak - held for peak, held in peaks]
    return course


def _held_before(devices: tuple[torch.device, ...]) -> list[int]:
    """Bytes that the process's tensors take on each of its GPUs, from where their peaks are now counted."""
    gpus = [device for device in devices if is_gpu(device)]
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
    return [torch.cuda.memory_allocated(device) for device in gpus]


def _compare(
    verdict: Verdict, trial: Trial, observed: Sequence[Observed], whole: Tensors, reference: dict[str, Any]
) -> None:
    """Compare a trial's losses and final parameters with the reference's."""
    reported = [seen.losses for seen in observed if seen.replica.reports]
    if not all(seen.always_training for seen in observed):
        verdict.problems.append(f"{trial.name}: it trains in evaluation mode, where dropout is off")
    if counts := [len(losses) for losses in reported if len(losses) != trial.steps]:
        verdict.problems.append(f"{trial.name}: {counts[0]} steps were trained, of {trial.steps}")
    elif "losses" in trial.compares and (limit := trial.limit_of("losses")) is not None:
        curve = torch.tensor(reported, dtype=torch.float64).mean(0)
        what = f"largest loss difference in {trial.steps} steps, {trial.what}"
        verdict.add(Part(trial.name, "losses", what, scaled(curve, reference["losses"]), limit))
    if set(whole) != set(reference["parameters"]):
        names = sorted(set(whole) ^ set(reference["parameters"]))
        verdict.problems.append(f"{trial.name}: names of parameters differ from the reference's: {names[:4]}")
    elif "parameters" in trial.compares and (limit := trial.limit_of("parameters")) is not None:
        expected = {name: tensor for name, tensor in reference["parameters"].items() if name not in trial.unsteady}
        pairs = [(whole[name], tensor) for name, tensor in expected.items()]
        what, figure = "largest parameter difference", largest(pairs)
        relative, smallest = share(distance(pairs), reference["update"]), _relative_limit(pairs, reference)
        # Where parameters hardly move, as in fine-tuning, a fault moves them by less than the limit.
        if trial.relative or (limit == EXACT and figure <= limit and relative > smallest):
            limit = limit if trial.relative else smallest
            what, figure = "parameter difference, relative to how far training moves them,", relative
        what = f"{what} after {trial.steps} steps, {trial.what}"
        verdict.add(Part(trial.name, "parameters", what, figure, limit))


def _relative_limit(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], reference: dict[str, Any]) -> float:
    """How far parameters may be in float64, relative to how far training moves them; infinite where it does not."""
    numbers = sum(tensor.numel() for _, tensor in pairs)
    rounding = reference["rounding"].get("parameters", 0.0) * math.sqrt(numbers)
    return max(RELATIVE_LIMIT, RELATIVE_MARGIN * rounding / reference["update"]) if reference["update"] else math.inf


def _evaluated(
    verdict: Verdict, observed: Sequence[Observed], reference: dict[str, Any], data: TrialData, task: TrialTask
) -> None:
    """Compare what the trained model predicts for the first batch."""
    verdict.tell(problem for seen in observed for problem in seen.problems)
    of_replicas = sorted((seen for seen in observed if seen.replica.reports), key=lambda seen: seen.replica.index)
    slices = [out for seen in of_replicas for out in seen.outputs.values()]
    if data.padded:  # each slice to its own longest sample, so that the whole batch's outputs may have other shapes
        plain = Plain.of(task, data.device)
        plain.model.load_state_dict(reference["parameters"])
        places, outputs = range(len(slices)), [leaf for leaves in slices for leaf in leaves]
        given = (data.batch(task, 0, each, len(slices)) for each in places)
        expected = [leaf for each in given for leaf in plain.predicted(each, whole=True)]
    else:
        outputs, expected = batches.joined(slices), reference["outputs"]
    _outputs(verdict, each_apart(outputs, expected), reference)


def _outputs(verdict: Verdict, figures: Sequence[float], reference: dict[str, Any]) -> None:
    """Judge how far outputs are from the reference's, of one batch or of each slice."""
    # Parameters may be a hundred times as far from the reference's as rounding moves them. So may the outputs.
    limits = [max(EXACT, OUTPUTS_MARGIN * rounding) for rounding in reference["outputs_rounding"]] or [EXACT]
    compared = [(figures[place], limits[place % len(limits)]) for place in range(len(figures))]
    for output, limit in zip(reference["outputs"], limits, strict=False):
        if limit > MOST_OF_OUTPUTS:
            _unclear(verdict, limit / OUTPUTS_MARGIN, whole=not output.is_floating_point())
    clear = [pair for pair in compared if pair[1] <= MOST_OF_OUTPUTS]
    if clear or not compared:
        what = "largest difference of the trained model's outputs, in float64"
        figure, limit = max(clear, key=lambda pair: (pair[0] != pair[0], pair[0] / pair[1]), default=(0.0, EXACT))
        verdict.add(Part("algorithm", "outputs", what, figure, limit))


def _unclear(verdict: Verdict, rounding: float, *, whole: bool) -> None:
    """Tell that an output is not compared, because rounding alone moves it too far."""
    if whole:
        why = f"rounding alone changes {rounding:.1%} of an output's whole numbers"
        verdict.notes.append(f"evaluation: {why}: they are not compared")
    else:
        why = f"rounding alone moves the trained model's outputs by {rounding:.0e}, in float64"
        verdict.unprovable = verdict.unprovable or why


def _print(verdict: Verdict, trial: Trial, run: Training) -> None:
    for part in [part for part in verdict.parts if part.trial == trial.name]:
        at = f"batch {run.batch.global_batch_size}: {part.name}"
        print(f"{at}: {part.figure:.1e} of {part.limit:.0e} allowed", flush=True)


# Captured steps


def judge_replayed(
    verdict: Verdict, trials: Sequence[Trial], data: TrialData, reference: dict[str, Any], ranks: Ranks
) -> None:
    """Train with captured steps, as the run does, and compare. Where none is captured, a note says why. Collective."""
    (own,) = (trial for trial in trials if trial.name == "own precision")
    trial = replace(own, name="replayed", what=f"{own.what}, {REPLAYED}").as_far_as(reference)
    course, why = _train_replayed(trial, data, ranks)
    if why := next(filter(None, ranks.gather(why)), ""):
        verdict.notes.append(f"steps are not captured as a CUDA graph, because {why}")
        return
    whole, observed = cloned(course.strategy), ranks.collect(course.observed())
    if observed:
        _compare(verdict, trial, observed, whole, reference)
        _print(verdict, trial, data.run)


@dataclass
class Unseen(TrialTask):
    """The task of a trial, whose loss notes nothing: reading the samples' ids would wait for the GPU."""

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The task's loss."""
        return BoundTask.loss(self, outputs, batch.data)


def _train_replayed(trial: Trial, data: TrialData, ranks: Ranks) -> tuple[Course, str]:
    """Train as a run does whose steps are captured; and why none was replayed, '' where some were. Collective."""
    course = Course(data, ranks, data.of_kind(Unseen, trial))
    captured = Captured(course.build(), lambda batch: batch)
    if not captured.why and course.task.stilled.draws:
        captured.why = "the gate's own draws of random numbers are not"
    if captured.why:
        return course, captured.why
    ranks.barrier()
    course.train_steps = captured.train_steps
    for _ in course.steps(0, trial.steps):
        pass
    return course, captured.why or ("" if captured.replayed else f"{trial.steps} steps are too few")


# Where a training that failed a comparison parts from the plain one


def find_parting(verdict: Verdict, trials: Sequence[Trial], data: TrialData, ranks: Ranks) -> None:
    """Say in the verdict at which step, and in what, the first of these trials that failed parts from the plain
    training. Collective."""
    failed = [part.trial for part in verdict.parts if not part.passed and part.compared in ("losses", "parameters")]
    names = ranks.gather(failed)[0]  # only rank 0's verdict is complete
    trial = next((trial for trial in trials if trial.name in names), None)
    if trial is not None:
        verdict.where = _parting(trial, data, ranks) or verdict.where


def _parting(trial: Trial, data: TrialData, ranks: Ranks) -> str | None:
    """The first step and tensor that differ, in a phrase; None where no step shows it again. Collective."""
    course = Course(data, ranks, data.task(trial, scale=trial.scale), lossy=trial.lossy)
    course.build()
    unscaled = data.task(trial)
    plain = Plain.of(unscaled, data.device) if ranks.rank == 0 else None
    reporting = ranks.gather(course.seen.replica.reports)
    initial = State.of(plain).model if plain else {}
    with closing(course.steps(0, trial.steps)) as steps, suppress(EndedEarlyError):
        for step in steps:
            whole = course.strategy.whole_model()
            losses, differing = ranks.collect(course.loss(step)), None
            if plain is not None:
                expected = plain.step([[data.batch(unscaled, step)]], unscaled.learning_rate(step))
                mine = [loss for loss, reports in zip(losses, reporting, strict=True) if reports]
                differing = _first(trial, whole, State.of(plain).model, initial) or _of_loss(
                    trial, mine, float(expected)
                )
            if differing := ranks.gather(differing)[0]:
                return f"first differs at step {step + 1} in {differing}"
    return None


def _first(trial: Trial, whole: Tensors, expected: Tensors, initial: Tensors) -> str | None:
    """The first tensor, in the network's order, that differs by more than the trial allows."""
    if not expected.keys() <= whole.keys():
        return None  # a problem says so already
    expected = {name: tensor for name, tensor in expected.items() if name not in trial.unsteady}
    figures = {name: difference(whole[name], tensor) for name, tensor in expected.items()}
    if trial.relative:
        # Of all that training moved, each tensor's part of the difference that is allowed for all together.
        moved = distance([(tensor, initial[name]) for name, tensor in expected.items()]) / math.sqrt(len(expected))
        figures = {name: share(distance([(whole[name], tensor)]), moved) for name, tensor in expected.items()}
    limit = trial.limit_of("parameters") or trial.limit
    return next((f"{name} ({figure:.1e})" for name, figure in figures.items() if not figure <= limit), None)


def _of_loss(trial: Trial, mine: Sequence[float], expected: float) -> str | None:
    """The loss, where it differs and no tensor does."""
    if trial.relative or not mine:
        return None
    figure = abs(sum(mine) / len(mine) - expected)
    return None if figure <= (trial.limit_of("losses") or trial.limit) else f"the loss ({figure:.1e})"
