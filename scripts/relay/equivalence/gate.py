"""The equivalence gate: does this strategy compute the training that one process computes, and does it divide the work?

Started on every rank by the launcher: `python -m relay.launch.worker equivalence.gate WORK --help`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from relay import strategies
from relay.base import options
from relay.base.files import write_json
from relay.equivalence import between, own_batch, reference_file, where
from relay.equivalence.division import Trained, computed, divided
from relay.equivalence.figures import difference, distance, largest
from relay.equivalence.made_with import check_reference, made_with
from relay.equivalence.start import start
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import EXACT, Trial, trials
from relay.equivalence.verdict import UNFINISHED, Part, Verdict
from relay.equivalence.work import Work
from relay.process import sent
from relay.process.cpus import useful_threads
from relay.process.devices import is_gpu
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.spec.run import Gate, Training
from relay.strategies.base import Strategy
from relay.task.data import verify_on_further_nodes

CHECKPOINTS = "checkpoints"  # the folder beside the verdict, as long as the gate runs


def train(
    run: Training,
    trial: Trial,
    data: TrialData,
    ranks: Ranks,
    watched: AbstractContextManager[object] | None = None,
    work: Work | None = None,
) -> Trained:
    """Train one trial under the strategy, through the same contract as a run's training. Collective.

    `watched` is entered for the steps alone, when all is built; `work` counts what this rank computes in them.
    """
    if run.computation.compile:
        torch.compiler.reset()  # after several networks in one process torch would give up compiling, in silence
    idle = _held_before(ranks.devices)
    task = TrialTask.in_trial(run, trial, scale=trial.scale)
    strategy = start(run, task, ranks, lossy=trial.lossy)
    losses: list[torch.Tensor] = []
    seen: list[list[int]] = []
    training: list[bool] = []
    done: list[tuple[int, int]] = []
    strategy.set_learning_rate(task.learning_rate(0))
    ranks.barrier()
    before = sent.by_socket()
    replica = strategy.replica
    with watched or nullcontext(), work.counting() if work else nullcontext():
        for loss in strategy.train_steps(data.batches(task, trial.steps, replica.index, replica.count)):
            losses.append(loss)
            training.append(strategy.model.training)
            seen.append(list(task.seen))
            task.seen.clear()
            done += [work.taken()] if work else []
            strategy.set_learning_rate(task.learning_rate(len(losses)))
    # Several processes always have sockets, the control group's: where none is seen, the kernel cannot tell.
    bytes_sent = sent.since(before) if before or ranks.world_size == 1 else None
    values = [loss.double().item() / trial.scale for loss in losses] if replica.reports else []
    used = [torch.cuda.max_memory_allocated(device) - held for device, held in zip(ranks.devices, idle, strict=False)]
    return Trained(values, seen, all(training), bytes_sent, strategy.footprint(), used, done, strategy)


def _held_before(devices: tuple[torch.device, ...]) -> list[int]:
    """Bytes that the process's tensors take on each of its GPUs, from where their peaks are now counted."""
    gpus = [device for device in devices if is_gpu(device)]
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
    return [torch.cuda.memory_allocated(device) for device in gpus]


def compare(verdict: Verdict, trial: Trial, trained: Trained, reference: dict[str, Any], ranks: Ranks) -> None:
    """Compare a trial's losses and final parameters with the reference's. Collective; rank 0 judges."""
    whole = trained.strategy.whole_model()
    told = ranks.gather((trained.losses, trained.always_training))
    if ranks.rank != 0:
        return
    reported = [losses for losses, _ in told if losses]
    if not all(always_training for _, always_training in told):
        verdict.problems.append(f"{trial.name}: it trains in evaluation mode, where dropout is off")
    if counts := [len(losses) for losses in reported if len(losses) != trial.steps]:
        verdict.problems.append(f"{trial.name}: {counts[0]} steps were trained, of {trial.steps}")
    elif "losses" in trial.compares and (limit := trial.limit_of("losses")) is not None:
        curve = torch.tensor(reported, dtype=torch.float64).mean(0)
        what = f"largest loss difference in {trial.steps} steps, {trial.what}"
        verdict.add(Part(trial.name, "losses", what, difference(curve, reference["losses"]), limit))
    if set(whole) != set(reference["parameters"]):
        names = sorted(set(whole) ^ set(reference["parameters"]))
        verdict.problems.append(f"{trial.name}: names of parameters differ from the reference's: {names[:4]}")
    elif "parameters" in trial.compares and (limit := trial.limit_of("parameters")) is not None:
        pairs = [(whole[name], tensor) for name, tensor in reference["parameters"].items()]
        if trial.relative:
            what, figure = "parameter difference", distance(pairs) / reference["update"]
        else:
            what, figure = "largest parameter difference", largest(pairs)
        what = f"{what} after {trial.steps} steps, {trial.what}"
        verdict.add(Part(trial.name, "parameters", what, figure, limit))


@contextmanager
def _modes(strategy: Strategy) -> Iterator[set[bool]]:
    """Collects whether the model's modules are in training mode while they are called.

    The outputs do not tell: in the gate dropout is off, and BatchNorm frozen, in either mode.
    """
    modes: set[bool] = set()
    hooks = [
        module.register_forward_pre_hook(lambda called, _: modes.add(called.training))
        for module in strategy.model.modules()
    ]
    try:
        yield modes
    finally:
        for hook in hooks:
            hook.remove()


def evaluate(verdict: Verdict, trained: Trained, data: TrialData, reference: dict[str, Any], ranks: Ranks) -> None:
    """Compare what the trained model predicts, through the strategy's own `predict`. Collective."""
    replica, task = trained.strategy.replica, trained.strategy.task
    assert isinstance(task, TrialTask)
    inputs, _ = next(data.batches(task, 1, replica.index, replica.count))
    with _modes(trained.strategy) as modes:
        outputs = trained.strategy.predict(inputs)
    told = ranks.gather((replica.index, outputs.cpu()) if replica.reports else None)
    told_modes = ranks.gather((True in modes, trained.strategy.model.training))
    if ranks.rank == 0:
        if any(predicts_training for predicts_training, _ in told_modes):
            verdict.problems.append("evaluation: it predicts in training mode, where dropout is on")
        if not all(trains_on for _, trains_on in told_modes):
            verdict.problems.append("evaluation: it stays in evaluation mode, where dropout is off")
        outputs = torch.cat([out for _, out in sorted((t for t in told if t is not None), key=lambda t: t[0])])
        figure = difference(outputs, reference["outputs"])
        what = "largest difference of the trained model's outputs, in float64"
        verdict.add(Part("algorithm", "outputs", what, figure, EXACT))


def communicated(run: Training, data: TrialData, ranks: Ranks, steps: int = 3) -> list[int]:
    """NCCL's operations in a step that the profiler sees on each rank: their bytes do not pass the TCP counters.

    Collective. What is sent while the strategy is built is not among them.
    """
    profiler = torch.profiler.profile()
    trial = Trial(name="communication", what="", precision="fp32", steps=steps, limit=0, compares=())
    train(run, trial, data, ranks, watched=profiler)
    return ranks.gather(sum(e.count for e in profiler.key_averages() if e.key.startswith("nccl")) // steps)


def judge_trial(
    verdict: Verdict,
    run: Training,
    trial: Trial,
    data: TrialData,
    reference: dict[str, Any],
    ranks: Ranks,
    per_sample: tuple[float, ...] | None = None,
) -> list[str]:
    """Train one trial as far as its reference went, and compare. The algorithm's also shows the division of work.

    With `per_sample` (of rank 0, empty elsewhere), what each rank computes is counted, too; not in compiled code.
    Returns what the trial has changed in the network. Collective; rank 0 judges.
    """
    verdict.notes += trial.weakened_by(reference)
    trial = trial.as_far_as(reference)
    counted = per_sample is not None and trial.name == "algorithm" and not run.computation.compile
    trained = train(run, trial, data, ranks, work=Work() if counted else None)
    compare(verdict, trial, trained, reference, ranks)
    if trial.name == "algorithm":
        evaluate(verdict, trained, data, reference, ranks)
        divided(verdict, run, trial, trained, data, reference["footprint"], ranks)
        if counted and per_sample is not None:
            computed(verdict, run, trained, per_sample, ranks)
    for part in [part for part in verdict.parts if part.trial == trial.name]:
        at = f"batch {run.batch.global_batch_size}: {part.name}"
        print(f"{at}: {part.figure:.1e} of {part.limit:.0e} allowed", flush=True)
    assert isinstance(trained.strategy.task, TrialTask)
    return trained.strategy.task.notes


def _use_threads(run: Training) -> None:
    """Compute in as many threads as each process's part of the batch can use."""
    parts = run.shape.world_size if "samples" in run.strategy.divides else 1
    torch.set_num_threads(useful_threads(run.shape.threads, run.batch.global_batch_size // parts))


def judge(run: Gate, dataset: Path, trained: Path, ranks: Ranks, folder: Path) -> Verdict:
    """All trials and the division of work. Collective; only rank 0's verdict is complete.

    `trained` is the reference's file.
    `folder`, which all ranks see, gets checkpoints and, before each own batch, the verdict so far. Both are removed at
    the end. A strategy that fails at one batch, for lack of memory perhaps, has shown what it does at smaller ones.
    """
    verify_on_further_nodes(dataset, run.shape.nodes, ranks)
    _use_threads(run)
    reference, here = reference_file.read(trained), made_with(dataset, ranks.device)
    check_reference(reference, here, trained)
    data, verdict = TrialData(run, dataset, ranks.device), Verdict(run.id, figures=here)
    asked = trials(run, lossy=bool(run.strategy.lossy))
    for trial in asked:
        changes = judge_trial(verdict, run, trial, data, reference[trial.name], ranks)
        verdict.notes += changes if trial.name == "algorithm" else []
    between.judge(
        verdict, run, data, folder / CHECKPOINTS, ranks, slowdown=reference.get("own precision", {}).get("slowdown", 1)
    )
    where.find(verdict, run, [trial.as_far_as(reference[trial.name]) for trial in asked], data, ranks)
    for own in run.own_batches:
        if ranks.rank == 0:
            write_json(folder / UNFINISHED, verdict.as_dict() | {"at": asdict(own)})
        its_run = own_batch.at(run, own)
        _use_threads(its_run)
        its_data = data.of(its_run)
        asked = []
        for trial in own_batch.trials(its_run):
            plain = own_batch.plain(its_run, trial, its_data, ranks)
            judge_trial(verdict.of_batch(own), its_run, trial, its_data, plain, ranks, verdict.per_sample)
            asked.append(trial.as_far_as(plain))
        where.find(verdict.of_batch(own), its_run, asked, its_data, ranks)
    if ranks.rank == 0:
        (folder / UNFINISHED).unlink(missing_ok=True)
    threads = enumerate(ranks.gather(torch.get_num_threads()))
    more = [(rank, count) for rank, count in threads if count > run.shape.threads]
    verdict.problems += [
        f"threads: rank {rank} computes in {count}, declared are {run.shape.threads}" for rank, count in more[:1]
    ]
    if ranks.backend == "nccl" and ranks.world_size > 1:
        told = communicated(run, data, ranks)
        silent = [rank for rank, operations in enumerate(told) if operations == 0]
        verdict.problems += [f"division of work: rank {rank} used NCCL in no step" for rank in silent[:1]]
    if run.strategy.lossy:
        named = ", ".join(f"{name} {run.strategy.options[name]}" for name in run.strategy.lossy)
        verdict.figures["lossy"] = named
        verdict.notes.append(f"{named} is lossy: the algorithm is proven without it, its update is only bounded")
    if run.task.shrunken:
        verdict.notes.append(f"the network is shrunken for the gate: {dict(run.task.shrunken)}")
    return verdict


def main(arguments: list[str]) -> None:
    """Parse the command line, judge, and write the verdict."""
    parser = options.parser(__doc__, "spec", "output", "reference", "dataset", prog="equivalence.gate")
    given = parser.parse_args(arguments)

    torch.use_deterministic_algorithms(True, warn_only=True)
    strategies.watch(given.spec, given.output.parent, given.dataset, secret=[given.reference])
    with joined(given.spec, strategies.service) as (run, ranks):
        assert isinstance(run, Gate)
        verdict = judge(run, given.dataset, given.reference, ranks, given.output.parent)
        if ranks.rank == 0:
            write_json(given.output, verdict.as_dict())
