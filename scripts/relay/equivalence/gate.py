"""The equivalence gate: does this strategy compute the training that one process computes, and does it divide the work?

Started on every rank by the launcher: `python -m relay.launch.worker equivalence.gate WORK --help`.
"""

import gc
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from relay import strategies
from relay.base import options
from relay.base.files import write_json
from relay.equivalence import between, judged, reference
from relay.equivalence.plain import deterministic
from relay.equivalence.trial_task import TrialData
from relay.equivalence.trials import Trial, at_own_batch, own_batch_trials, trials
from relay.equivalence.verdict import ALONG, UNFINISHED, Verdict
from relay.process import machine
from relay.process.cpus import useful_threads
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder import stalled
from relay.spec.job import Job
from relay.spec.run import Gate, OwnBatch, Training
from relay.task.data import verify_on_further_nodes

CHECKPOINTS = "checkpoints"  # the folder beside the verdict, as long as the gate runs


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
        _judge_along(given.beside, given.dataset, ranks)


def judge(run: Gate, dataset: Path, trained: Path, ranks: Ranks, folder: Path) -> Verdict:
    """All trials and the division of work. Collective; only rank 0's verdict is complete.

    `trained` is the reference's file.
    `folder`, which all ranks see, gets checkpoints and, before each own batch, the verdict so far. Both are removed at
    the end. A strategy that fails at one batch, for lack of memory perhaps, has shown what it does at smaller ones.
    """
    verify_on_further_nodes(dataset, run.shape.nodes, ranks)
    results, here = reference.read(trained), reference.made_with(dataset, ranks.device)
    reference.check_made_with(results, here, trained)
    verdict = Verdict(run.id, figures=here, unprovable=results.get("unprovable"))
    if verdict.unprovable:
        return verdict
    data = TrialData(run, dataset, ranks.device)
    data.computed_in = results.get("computed_in", run.computation.precision)
    if data.computed_in != run.computation.precision:
        verdict.notes.append(f"the model or the loss computes in {data.computed_in} by itself: limits are those of it")
    _at_proof_batch(verdict, run, data, results, folder / CHECKPOINTS, ranks)
    for own in run.own_batches:
        if ranks.rank == 0:
            write_json(folder / UNFINISHED, verdict.as_dict() | {"at": asdict(own)})
        _at_own_batch(verdict, run, own, data, ranks)
    if ranks.rank == 0:
        (folder / UNFINISHED).unlink(missing_ok=True)
    _of_processes(verdict, run, data, ranks)
    _of_what_is_changed(verdict, run)
    return verdict


def _at_proof_batch(
    verdict: Verdict, run: Gate, data: TrialData, results: dict[str, Any], checkpoints: Path, ranks: Ranks
) -> None:
    """Every trial that the reference knows, the training between its steps, and where the first failed one parts."""
    _use_threads(run)
    run_trials = trials(run, data.computed_in, lossy=bool(run.strategy.lossy))
    for trial in run_trials:
        changes = judged.judge(verdict, trial, data, results[trial.name], ranks)
        verdict.notes += changes if trial.name == "algorithm" else []
    captures = strategies.load(run.strategy.name).capture_after
    if run.computation.cuda_graph and captures and "own precision" in results:
        judged.judge_replayed(verdict, run_trials, data, results["own precision"], ranks)
    slowdown = results.get("own precision", {}).get("slowdown", 1)
    between.judge(verdict, data, checkpoints, ranks, slowdown=slowdown)
    judged.find_parting(verdict, [trial.as_far_as(results[trial.name]) for trial in run_trials], data, ranks)


def _at_own_batch(verdict: Verdict, gate: Gate, own: OwnBatch, data: TrialData, ranks: Ranks) -> None:
    """A few steps at the batch of some of the gate's runs, beside those of rank 0's plain process."""
    run = at_own_batch(gate, own)
    _use_threads(run)
    its_data, its_trials = data.of(run), []
    for trial in own_batch_trials(run, data.computed_in):
        plain = reference.of_own_batch(trial, its_data, ranks)
        judged.judge(verdict.of_batch(own), trial, its_data, plain, ranks)
        its_trials.append(trial.as_far_as(plain))
    judged.find_parting(verdict.of_batch(own), its_trials, its_data, ranks)


def _use_threads(run: Training) -> None:
    """Compute in as many threads as each process's part of the batch can use."""
    parts = run.shape.world_size if "samples" in run.strategy.divides else 1
    machine.compute_in(useful_threads(run.shape.threads, run.batch.global_batch_size // parts))


def _of_processes(verdict: Verdict, run: Gate, data: TrialData, ranks: Ranks) -> None:
    """The threads that a rank computes in, and whether it uses NCCL. Collective."""
    threads = enumerate(ranks.gather(torch.get_num_threads()))
    more = [(rank, count) for rank, count in threads if count > run.shape.threads]
    verdict.problems += [
        f"threads: rank {rank} computes in {count}, declared are {run.shape.threads}" for rank, count in more[:1]
    ]
    if ranks.backend == "nccl" and ranks.world_size > 1:
        silent = [rank for rank, operations in enumerate(_communicated(data, ranks)) if operations == 0]
        verdict.problems += [f"division of work: rank {rank} used NCCL in no step" for rank in silent[:1]]


def _communicated(data: TrialData, ranks: Ranks, steps: int = 3) -> list[int]:
    """NCCL's operations in a step that the profiler sees on each rank: their bytes do not pass the TCP counters.

    Collective. What is sent while the strategy is built is not among them.
    """
    profiler = torch.profiler.profile()
    trial = Trial(name="communication", precision="fp32", steps=steps)
    judged.train(trial, data, ranks, watched=profiler)
    return ranks.gather(sum(e.count for e in profiler.key_averages() if e.key.startswith("nccl")) // steps)


def _of_what_is_changed(verdict: Verdict, run: Gate) -> None:
    """Notes of what the gate has trained in another way than a run; and whom a problem does not blame."""
    if run.strategy.lossy:
        named = ", ".join(f"{name} {run.strategy.options[name]}" for name in run.strategy.lossy)
        verdict.figures["lossy"] = named
        verdict.notes.append(f"{named} is lossy: the algorithm is proven without it, its update is only bounded")
    if run.task.small:
        verdict.notes.append(f"the model is shrunken for the gate: {dict(run.task.small)}")
    computation = run.computation  # these compute layers by other code than the plain training's
    if strategies.load(run.strategy.name).plain and not (computation.compile or computation.cuda_graph):
        verdict.excuse()


# Further gates in the same processes


def _judge_along(beside: Sequence[Path], dataset: Path, ranks: Ranks) -> None:
    """Judge further gates of the same shape, and note a pass beside its specification. Collective.

    `beside` are a specification and a reference's file for each. Their datasets lie beside `dataset`, which is that of
    the first gate.
    A gate that fails here, or ends these processes, may have met what an earlier strategy has left: it counts as not
    judged.
    """
    for spec, trained in zip(beside[::2], beside[1::2], strict=True):
        run = Gate.read(spec)
        if ranks.rank == 0:
            print(f"further gate {run.id}:", flush=True)
            write_json(spec.parent / ALONG, None)
        machine.check_granted(run, ranks, Job.read(spec))
        machine.check_precision(run, run.computation.precision, ranks.device)
        _as_in_new_processes(run)
        with strategies.service(run):
            verdict = judge(run, dataset.with_name(run.dataset.directory_name), trained, ranks, spec.parent)
            ranks.barrier()
        if ranks.rank == 0 and (judgement := verdict.as_dict())["equivalent"]:
            write_json(spec.parent / ALONG, judgement)


def _as_in_new_processes(run: Training) -> None:
    """Turn the switches back that a strategy may have turned for its whole process."""
    torch.set_default_dtype(torch.float32)
    torch.set_autocast_enabled("cpu", False)
    if torch.get_float32_matmul_precision() != "highest":
        torch.set_float32_matmul_precision("highest")
    deterministic()
    machine.set_precision(run.computation.precision)
    gc.collect()  # what the one before held
