"""A finished run's summary: what its attempts recorded, put together. Needs no torch."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from relay.base.errors import UserError
from relay.run_folder import run_chain
from relay.run_folder.attempts import Counted, Records, counted, not_finite
from relay.run_folder.job_times import spent, split
from relay.run_folder.replaced import how_anew
from relay.run_folder.run_chain import Attempt, RunChain
from relay.run_folder.summary import Losses, Summary
from relay.spec.run import Run, Training
from relay.training.step_split import StepSplit, figures
from relay.training.utilisation import used

KEPT_LOSSES = 200  # points of the loss curve: enough for a plot
COUNTED = ("disk_bytes_written", "disk_bytes_read")  # the figures of a summary that a strategy counts
# Batches differ, so that the losses of so many steps differ too, even where nothing is learnt.
MOST_EQUAL_LOSSES = 10
Attempts = Sequence[tuple[Attempt, Records]]  # all of a run, each with what it has recorded


def summarise(run: Run, work: Path) -> Summary:
    """The summary of a run whose last segment has ended.

    Raises UserError where its records are gone.
    """
    chain, attempts = recorded_of(run, work)
    trained = [(attempt.number, records) for attempt, records in attempts if records]
    counts = counted([records for _, records in trained])
    observed = StepSplit.read(work)
    timed = [
        block
        for (number, _), each in zip(trained, counts, strict=True)
        for block in each.blocks
        if len(block) == 4  # else its batches were ready
        and block[0] >= each.start + run.length.warmup_steps
        and not (observed and observed.within(number, block))
    ]
    seconds, steps = sum(b[2] for b in timed), sum(int(b[1] - b[0]) for b in timed)
    losses = [pair for each in counts for pair in each.losses]
    evaluations = [evaluation for each in counts for evaluation in each.evaluations]
    last = evaluations[-1] if evaluations else {}
    refused = no_result(run, losses, evaluations, began=chain.adopted_step)
    of_a_step = quantiles(timed)
    return Summary(
        **of_jobs(run, work, chain, attempts, [sum(b[2] for b in each.blocks) for each in counts]),
        status="failed" if refused else "done",
        reason=refused or remarks(run, steps, chain, attempts),
        samples_per_second=steps * run.batch.global_batch_size / seconds if seconds else None,
        measured_steps=steps,
        second_half_ratio=second_half(timed),
        **of_a_step,
        **figures(observed, of_a_step["step_seconds_median"]),
        data_wait_fraction=sum(b[3] for b in timed) / seconds if seconds else None,
        **_counted_by_strategy(attempts),
        **_cuda_graph(attempts),
        test_accuracy=last.get("test_accuracy"),
        test_loss=last.get("test_loss"),
        test_metric=next(iter(last.get("test_metrics", {}).values()), None),  # the task's first, whatever its name
        train_loss=losses[-1][1] if losses else None,
        evaluations=tuple(evaluations),
        losses=thinned(losses),
    )


def recorded_of(run: Run, work: Path) -> tuple[RunChain, Attempts]:
    """A run's chain, and its attempts. Raises UserError where their records are gone."""
    chain = run_chain.read(work)
    attempts = chain.recorded(work) if chain else []
    if chain is None or not any(records for _, records in attempts):
        raise UserError(f"run {run.id}: no records in {work}; delete results/runs/{run.id} to train it again")
    return chain, attempts


def counted_of(work: Path) -> list[Counted]:
    """What counts of each attempt that has left records: its losses, by step, and its evaluations."""
    return counted([records for _, records in run_chain.recorded(work)])


def kept_losses(work: Path) -> dict[int, float]:
    """The training loss of each step that counts, over all attempts."""
    return {step: loss for attempt in counted_of(work) for step, loss in attempt.losses}


def of_jobs(run: Run, work: Path, chain: RunChain, attempts: Attempts, trained: list[float]) -> dict[str, Any]:
    """What a summary says of a run's jobs, whatever they train: their time, memory, nodes and versions.

    `trained` are the seconds of steps that count, of each attempt that left records.
    """
    seconds = iter(trained)
    jobs = [spent(attempt, records, next(seconds) if records else 0.0) for attempt, records in attempts]
    allocated = sum(each.seconds for each in jobs)
    by_attempt = _ranks(attempts)
    every = [rank for ranks in by_attempt for rank in ranks]
    newest = by_attempt[-1]
    threads, cpus = _threads_and_cpus(newest)
    return {
        "run": run.id,
        "setting": run.setting_id,
        "attempts": len(attempts),
        "warmup_steps": run.length.warmup_steps,
        "train_seconds": sum(trained),
        "allocated_seconds": allocated,
        "goodput": sum(trained) / allocated if allocated else None,
        **split(jobs),
        "peak_memory_bytes": _peak(attempts, "peak_memory_bytes"),
        "peak_main_memory_bytes": _peak(attempts, "peak_main_memory_bytes"),
        **used(work, [(attempt.number, records) for attempt, records in attempts], run.length.steps_per_epoch),
        "hosts": sorted({rank["host"] for rank in every}),
        "virtual": any(rank.get("virtual") for rank in every),
        "cpu_quota": min(filter(None, (rank.get("cpu_quota") for rank in every)), default=None),
        "shares_nodes": any(attempt.shares_nodes for attempt in chain.attempts),
        "threads_on_node": threads,
        "cpus_of_node": cpus,
        "device_name": " and ".join(_device_names(by_attempt)),
        "versions": newest[0]["versions"],
        "dataset": newest[0].get("dataset"),
        "training_source": chain.training_source,
        "adopted_from": chain.adopted_from,
        "generation": chain.generation,
        "code": chain.code,
        "strategy_source": chain.strategy_source,
        "started_at": datetime.fromtimestamp(chain.attempts[0].started, UTC).isoformat(timespec="seconds"),
    }


def _ranks(attempts: Attempts) -> list[Sequence[Mapping[str, Any]]]:
    """What the ranks of each attempt that left records ran on."""
    return [records.ranks for _, records in attempts if records]


def _ends(attempts: Attempts) -> list[Mapping[str, Any]]:
    """The lines with which attempts came to an end."""
    return [records.end for _, records in attempts if records.end]


def _peak(attempts: Attempts, name: str) -> int | None:
    """The largest figure of this name at the ends of the attempts; None where none has recorded it."""
    return max((end[name] for end in _ends(attempts) if end.get(name) is not None), default=None)


def _counted_by_strategy(attempts: Attempts) -> dict[str, Any]:
    """What the strategy has counted, such as bytes on a disk, over all attempts that came to an end.

    Only what no one else tells: the records have the rest.
    """
    counts = [end.get("counted", {}) for end in _ends(attempts)]
    names = set().union(*counts) & set(COUNTED)
    return {name: int(sum(each.get(name, 0) for each in counts)) for name in names}


def _cuda_graph(attempts: Attempts) -> dict[str, Any]:
    """How many steps were replayed as a CUDA graph, and why none was; nothing of a run whose steps were not to be."""
    captures = [end["cuda_graph"] for end in _ends(attempts) if end.get("cuda_graph")]
    if not captures:
        return {}
    replayed = sum(each["replayed"] for each in captures)
    return {"replayed_steps": replayed, "not_captured": captures[-1]["why_not"] or None}


def second_half(blocks: list[list[float]]) -> float | None:
    """The speed of the second half of the timed steps over that of the first; None where there are no halves."""
    steps, middle = 0.0, sum(b[1] - b[0] for b in blocks) / 2
    halves: tuple[list[list[float]], list[list[float]]] = ([], [])
    for block in blocks:
        halves[steps >= middle].append(block)
        steps += block[1] - block[0]
    if not all(halves):
        return None
    first, second = (sum(b[1] - b[0] for b in half) / sum(b[2] for b in half) for half in halves)
    return second / first


def quantiles(blocks: list[list[float]]) -> dict[str, Any]:
    """Median and 95th percentile of a step's seconds, from the means of the blocks; None without any."""
    each = sorted(b[2] / (b[1] - b[0]) for b in blocks)
    p95 = each[min(len(each) - 1, int(0.95 * len(each)))] if each else None
    return {"step_seconds_median": median(each) if each else None, "step_seconds_p95": p95}


def thinned(losses: list[tuple[int, float]]) -> Losses:
    """At most KEPT_LOSSES points of the curve, the first and the last one among them."""
    stride = max(1, -(-len(losses) // (KEPT_LOSSES - 1)))
    kept = losses[::-1][::stride][::-1]
    kept = [*(losses[:1] if kept[:1] != losses[:1] else []), *kept]
    return Losses([step for step, _ in kept], [value for _, value in kept])


def _device_names(by_attempt: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """The kinds of device that the ranks of all attempts had."""
    return sorted({str(rank["device_name"]) for ranks in by_attempt for rank in ranks})


def _threads_and_cpus(ranks: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The threads of all ranks on the first node, and the CPUs that they had there, each its own or all the same."""
    on_node = [rank for rank in ranks if rank["host"] == ranks[0]["host"]]
    together = set[int]().union(*(rank.get("affinity") or () for rank in on_node))
    return sum(rank["threads"] for rank in on_node), len(together) or on_node[0]["cpus"]


def _why_not_timed(run: Run, attempts: Attempts) -> str:
    """Why nothing was measured: data workers may have made all batches ready, or there was no step."""
    warm_up, trained = run.length.warmup_steps, [] if run.strategy.script else [each for _, each in attempts if each]
    if any(len(b) > 4 and b[0] >= each.start + warm_up for each in trained for b in each.all_of("blocks")):
        return (
            "nothing was measured: data workers may have made all batches ready in pauses; evaluate less often "
            "(evaluate_every_epochs), or give fewer data_workers"
        )
    return f"no step after the {warm_up} of warm-up: nothing was measured"


def remarks(run: Run, measured_steps: int, chain: RunChain, attempts: Attempts) -> str:
    """What a reader has to know of a run that is done, '' where there is nothing."""
    by_attempt, adopted = _ranks(attempts), chain.adopted_from
    threads, cpus = _threads_and_cpus(by_attempt[-1])
    parts = []
    if adopted:
        whose = f"run {adopted['run']} ({adopted['strategy']} ×{adopted['world_size']})"
        parts.append(f"went on from step {adopted['step']} of {whose}")
    if not measured_steps:
        parts.append(_why_not_timed(run, attempts))
    if len(names := _device_names(by_attempt)) > 1:
        parts.append(f"its speed is one over {' and '.join(names)}: name the kind of node in the site's file")
    if len({json.dumps(ranks[0]["versions"]) for ranks in by_attempt}) > 1:
        parts.append("its jobs had different versions of the software")
    if len({ranks[0].get("dataset") for ranks in by_attempt}) > 1:
        parts.append("its dataset was made anew, with other content, between its jobs")
    if threads > cpus:
        parts.append(f"{threads} threads shared {cpus} CPUs")
    return "; ".join(parts)


# When the records are no result


def no_result(
    run: Training, losses: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], began: int = 0
) -> str:
    """Why the records of a finished run are no result, and what to do; '' where they are one.

    `losses` are (step, training loss) of the steps that count, in order. `evaluations` have `step`, `test_loss` and
    `test_accuracy`. `began` is the step from which the run went on: that of a checkpoint that it took over, or 0.
    """
    return not_finite(losses, evaluations) or next(_faults(run, losses, evaluations, began), "")


def _faults(
    run: Training, losses: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], began: int
) -> Iterator[str]:
    total, anew = run.length.total_steps, f"`{how_anew(run.id)}` lets it train anew"
    recorded = {step for step, _ in losses}
    if missing := [step for step in range(began + 1, total + 1) if step not in recorded]:
        count = f"{len(missing)} of {total - began} steps have no training loss in its records"
        yield f"{count}, the first is {missing[0]}; {anew}"
    if len(losses) >= MOST_EQUAL_LOSSES and len({loss for _, loss in losses}) == 1:
        yield (
            f"the training loss is {losses[0][1]:.6g} at every step: it cannot be that of its batches; "
            "`train_step` returns the mean loss of the batch that it trained"
        )
    at_the_end = [evaluation for evaluation in evaluations if evaluation["step"] == total]
    if not at_the_end:
        yield f"the evaluation after the last step, {total}, is missing in its records; {anew}"
    for evaluation in at_the_end:
        accuracy = evaluation["test_accuracy"]
        if accuracy is None and "accuracy" in run.task.metrics:
            yield f"the test accuracy of step {total} is missing in its records; {anew}"
        if accuracy is not None and not 0 <= accuracy <= 1:  # also where it is no number
            yield f"the test accuracy of step {total} is {accuracy:.4g}; allowed: from 0 to 1. Look at `predict`"
