"""The equivalence gate: does this strategy compute the training that one process computes, and does it divide the work?

Started on every rank by the launcher: `python -m relay.launch.worker equivalence.gate WORK --help`.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from relay import strategies
from relay.base import options
from relay.base.files import write_json
from relay.equivalence import between, own_batch, reference_file, replayed, where
from relay.equivalence.course import Course, EndedEarlyError, Seen, cloned
from relay.equivalence.division import computed, divided
from relay.equivalence.figures import apart, distance, largest, scaled
from relay.equivalence.made_with import check_reference, made_with
from relay.equivalence.plain import deterministic
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import EXACT, Trial, trials
from relay.equivalence.verdict import ALONG, UNFINISHED, Part, Verdict
from relay.process import machine, sent
from relay.process.cpus import useful_threads
from relay.process.devices import is_gpu
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder import stalled
from relay.spec.job import Job
from relay.spec.run import Gate, Training
from relay.task import batches
from relay.task.data import verify_on_further_nodes

CHECKPOINTS = "checkpoints"  # the folder beside the verdict, as long as the gate runs
OUTPUTS_MARGIN = 100  # how many times as far as rounding moves them predictions may be, in float64


def train(
    run: Training,
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
    course = Course(run, data, ranks, data.task(trial, scale=trial.scale), lossy=trial.lossy, counted=counted)
    course.build()
    ranks.barrier()
    before = sent.by_socket()
    with watched or nullcontext(), suppress(EndedEarlyError):
        for _ in course.steps(0, trial.steps):
            pass
    course.seen.footprint = course.strategy.footprint()  # a prediction may gather what is sharded
    # Several processes always have sockets, the control group's: where none is seen, the kernel cannot tell.
    course.seen.bytes_sent = sent.since(before) if before or ranks.world_size == 1 else None
    peaks = ((torch.cuda.max_memory_allocated(device), held) for device, held in zip(ranks.devices, idle, strict=False))
    course.seen.used_bytes = [peak - held for peak, held in peaks]
    return course


def _held_before(devices: tuple[torch.device, ...]) -> list[int]:
    """Bytes that the process's tensors take on each of its GPUs, from where their peaks are now counted."""
    gpus = [device for device in devices if is_gpu(device)]
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)
    return [torch.cuda.memory_allocated(device) for device in gpus]


def compare(
    verdict: Verdict, trial: Trial, told: Sequence[Seen], whole: Mapping[str, torch.Tensor], reference: dict[str, Any]
) -> None:
    """Compare a trial's losses and final parameters with the reference's."""
    reported = [seen.losses for seen in told if seen.replica.reports]
    if not all(seen.always_training for seen in told):
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
        pairs = [(whole[name], tensor) for name, tensor in reference["parameters"].items()]
        if trial.relative:
            what, figure = "parameter difference", distance(pairs) / reference["update"]
        else:
            what, figure = "largest parameter difference", largest(pairs)
        what = f"{what} after {trial.steps} steps, {trial.what}"
        verdict.add(Part(trial.name, "parameters", what, figure, limit))


def evaluated(verdict: Verdict, told: Sequence[Seen], reference: dict[str, Any]) -> None:
    """Compare what the trained model predicts for the first batch."""
    verdict.tell(problem for seen in told for problem in seen.problems)
    of_replicas = sorted((seen for seen in told if seen.replica.reports), key=lambda seen: seen.replica.index)
    outputs = batches.joined([out for seen in of_replicas for out in seen.outputs.values()])
    what = "largest difference of the trained model's outputs, in float64"
    # Parameters may be a hundred times as far from the reference's as rounding moves them. So may the outputs.
    limit = max(EXACT, OUTPUTS_MARGIN * reference["outputs_rounding"])
    verdict.add(Part("algorithm", "outputs", what, apart(outputs, reference["outputs"]), limit))


def communicated(run: Training, data: TrialData, ranks: Ranks, steps: int = 3) -> list[int]:
    """NCCL's operations in a step that the profiler sees on each rank: their bytes do not pass the TCP counters.

    Collective. What is sent while the strategy is built is not among them.
    """
    profiler = torch.profiler.profile()
    trial = Trial(name="communication", precision="fp32", steps=steps)
    train(run, trial, data, ranks, watched=profiler)
    return ranks.gather(sum(e.count for e in profiler.key_averages() if e.key.startswith("nccl")) // steps)


def judge_trial(
    verdict: Verdict,
    run: Training,
    trial: Trial,
    data: TrialData,
    reference: dict[str, Any],
    ranks: Ranks,
    per_sample: tuple[float, ...] = (),
) -> list[str]:
    """Train one trial as far as its reference went, and compare. The algorithm's also shows the division of work.

    `per_sample` are the operations that one process computes for a sample, where what each rank computes is to be
    compared with them; not in compiled code. Rank 0, which judges, knows them.
    Returns what the trial has changed in the network. Collective.
    """
    verdict.notes += trial.weakened_by(reference)
    trial = trial.as_far_as(reference)
    course = train(run, trial, data, ranks, counted=bool(per_sample))
    whole = cloned(course.strategy)
    if trial.name == "algorithm":
        course.predict(trial.steps, step=0)
    told = ranks.collect(course.told())
    if told:
        compare(verdict, trial, told, whole, reference)
        if trial.name == "algorithm":
            evaluated(verdict, told, reference)
            divided(verdict, run, trial, told, data, reference["footprint"])
    if told and per_sample:
        total, forward = (each * run.batch.global_batch_size for each in per_sample)
        computed(verdict, run, told, [(total, forward)] * trial.steps, reference["footprint"]["optimizer"])
    _tell(verdict, trial, run)
    return course.task.notes


def _tell(verdict: Verdict, trial: Trial, run: Training) -> None:
    for part in [part for part in verdict.parts if part.trial == trial.name]:
        at = f"batch {run.batch.global_batch_size}: {part.name}"
        print(f"{at}: {part.figure:.1e} of {part.limit:.0e} allowed", flush=True)


def judge_replayed(
    verdict: Verdict, run: Training, asked: Sequence[Trial], data: TrialData, reference: dict[str, Any], ranks: Ranks
) -> None:
    """Train with captured steps, as the run does, and compare. Where none is captured, a note says why. Collective."""
    (own,) = (trial for trial in asked if trial.name == "own precision")
    trial = replayed.of(own).as_far_as(reference)
    course, why = replayed.train(run, trial, data, ranks)
    if why := next(filter(None, ranks.gather(why)), ""):
        verdict.notes.append(f"steps are not captured as a CUDA graph, because {why}")
        return
    whole, told = cloned(course.strategy), ranks.collect(course.told())
    if told:
        compare(verdict, trial, told, whole, reference)
        _tell(verdict, trial, run)


def _use_threads(run: Training) -> None:
    """Compute in as many threads as each process's part of the batch can use."""
    parts = run.shape.world_size if "samples" in run.strategy.divides else 1
    machine.compute_in(useful_threads(run.shape.threads, run.batch.global_batch_size // parts))


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
    if "unprovable" in reference:
        return Verdict(run.id, figures=here, unprovable=reference["unprovable"])
    data, verdict = TrialData(run, dataset, ranks.device), Verdict(run.id, figures=here)
    asked = trials(run, lossy=bool(run.strategy.lossy))
    for trial in asked:
        changes = judge_trial(verdict, run, trial, data, reference[trial.name], ranks)
        verdict.notes += changes if trial.name == "algorithm" else []
    captures = strategies.load(run.strategy.name).capture_after
    if run.computation.cuda_graph and captures and "own precision" in reference:
        judge_replayed(verdict, run, asked, data, reference["own precision"], ranks)
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
            counted = trial.name == "algorithm" and not run.computation.compile
            per_sample = ranks.gather(verdict.per_sample)[0] if counted else ()
            judge_trial(verdict.of_batch(own), its_run, trial, its_data, plain, ranks, per_sample)
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
    if run.task.small:
        verdict.notes.append(f"the model is shrunken for the gate: {dict(run.task.small)}")
    computation = run.computation  # these compute layers by other code than the plain training's
    if strategies.load(run.strategy.name).plain and not (computation.compile or computation.cuda_graph):
        verdict.excuse()
    return verdict


def judge_along(spec: Path, dataset: Path, reference: Path, ranks: Ranks) -> None:
    """Judge a further gate of the same shape, and note a pass beside its specification. Collective.

    Its dataset lies beside `dataset`, which is that of the first gate.
    A gate that fails here, or ends these processes, may have met what an earlier strategy has left: it counts as not
    judged.
    """
    run = Gate.read(spec)
    if ranks.rank == 0:
        print(f"further gate {run.id}:", flush=True)
        write_json(spec.parent / ALONG, None)
    machine.check_granted(run, ranks, Job.read(spec))
    machine.check_precision(run, run.computation.precision, ranks.device)
    _as_in_new_processes(run)
    with strategies.service(run):
        verdict = judge(run, dataset.with_name(run.dataset.directory_name), reference, ranks, spec.parent)
        ranks.barrier()
    if ranks.rank == 0 and (found := verdict.as_dict())["equivalent"]:
        write_json(spec.parent / ALONG, found)


def judge_beside(beside: Sequence[Path], dataset: Path) -> None:
    """Judge gates of one process in this one, which has trained their reference. It exits at the end.

    `beside` are a specification and a reference's file for each.
    """
    with joined(beside[0]) as (_, ranks):
        for spec, reference in zip(beside[::2], beside[1::2], strict=True):
            judge_along(spec, dataset, reference, ranks)


def _as_in_new_processes(run: Training) -> None:
    """Turn the switches back that a strategy may have turned for its whole process."""
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)
    if torch.get_float32_matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
    deterministic()
    machine.set_precision(run.computation.precision)
    gc.collect()  # what the one before held


def main(arguments: list[str]) -> None:
    """Parse the command line, judge, and write the verdict; then judge further gates in the same process group."""
    parser = options.parser(__doc__, "spec", "output", "reference", "dataset", prog="equivalence.gate")
    parser.add_argument(
        "--beside", type=Path, nargs="*", default=[], help="of further gates: specification, reference, …"
    )
    given = parser.parse_args(arguments)

    _as_in_new_processes(Gate.read(given.spec))
    with joined(given.spec, strategies.service) as (run, ranks):
        assert isinstance(run, Gate)
        if ranks.rank == 0:  # it is never idle while others work, and its end ends them
            stalled.watch(given.output.parent)
        verdict = judge(run, given.dataset, given.reference, ranks, given.output.parent)
        ranks.barrier()
        if ranks.rank == 0:
            write_json(given.output, verdict.as_dict())
        for spec, reference in zip(given.beside[::2], given.beside[1::2], strict=True):
            judge_along(spec, given.dataset, reference, ranks)
