"""A finished run's summary: what its attempts recorded, put together. Needs no torch."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from relay.base.errors import UserError
from relay.run_folder import attempts
from relay.run_folder import chain as chains
from relay.run_folder.step_split import StepSplit, figures
from relay.spec.run import Run
from relay.training.goodput import spent, split
from relay.training.no_result import no_result
from relay.training.utilisation import used

KEPT_LOSSES = 200  # points of the loss curve: enough for a plot


def summarise(run: Run, work: Path) -> dict[str, Any]:
    """The summary of a run whose last segment has ended.

    Raises UserError where its records are gone.
    """
    chain, lines = recorded(run, work)
    counted = _counted(lines)
    seen, numbers = StepSplit.read(work), [entry["number"] for entry in chain["attempts"]]
    with_records = [number for number, records in zip(numbers, lines, strict=True) if records]
    measured = [
        block
        for number, attempt in zip(with_records, counted, strict=True)
        for block in attempt["blocks"]
        if len(block) == 4  # else its batches were ready
        and block[0] >= attempt["start"] + run.length.warmup_steps
        and not (seen and seen.within(number, block))
    ]
    seconds, steps = sum(b[2] for b in measured), sum(b[1] - b[0] for b in measured)
    losses = [pair for attempt in counted for pair in attempt["losses"]]
    evaluations = [e for attempt in counted for e in attempt["evaluations"]]
    adopted = chain.get("adopted_from")
    refused = no_result(run, losses, evaluations, began=(adopted or {}).get("step", 0))
    middle = quantiles(measured)
    return {
        **described(run, work, chain, lines, [sum(b[2] for b in attempt["blocks"]) for attempt in counted]),
        "status": "failed" if refused else "done",
        "reason": refused or remarks(run, steps, chain, lines),
        "samples_per_second": steps * run.batch.global_batch_size / seconds if seconds else None,
        "measured_steps": steps,
        "second_half_ratio": second_half(measured),
        **middle,
        **figures(seen, middle["step_seconds_median"]),
        "data_wait_fraction": sum(b[3] for b in measured) / seconds if seconds else None,
        **_counted_by_strategy(lines),
        **_cuda_graph(lines),
        "test_accuracy": evaluations[-1]["test_accuracy"] if evaluations else None,
        "test_loss": evaluations[-1]["test_loss"] if evaluations else None,
        # The task's first metric, whatever its name.
        "test_metric": next(iter(evaluations[-1].get("test_metrics", {}).values()), None) if evaluations else None,
        "train_loss": losses[-1][1] if losses else None,
        "evaluations": evaluations,
        "losses": thinned(losses),
    }


def recorded(run: Run, work: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """A run's chain, and the lines of each of its attempts. Raises UserError where its records are gone."""
    chain = chains.read(work)
    lines = [attempts.read(work, entry["number"]) for entry in chain["attempts"]] if chain else []
    if chain is None or not any(lines):
        raise UserError(f"run {run.id}: no records in {work}; delete results/runs/{run.id} to train it again")
    return chain, lines


def counted_of(work: Path) -> list[dict[str, Any]]:
    """For each attempt that has left records what counts of it: its losses, by step, and its evaluations."""
    chain = chains.read(work) or {"attempts": []}
    return _counted([attempts.read(work, entry["number"]) for entry in chain["attempts"]])


def kept_losses(work: Path) -> dict[int, float]:
    """The training loss of each step that counts, over all attempts."""
    return {step: loss for attempt in counted_of(work) for step, loss in attempt["losses"]}


def described(
    run: Run, work: Path, chain: dict[str, Any], lines: list[list[dict[str, Any]]], trained: list[float]
) -> dict[str, Any]:
    """What a summary says of a run's jobs, whatever they train: their time, memory, nodes and versions.

    `trained` are the seconds of steps that count, of each attempt that left records.
    """
    numbers = [entry["number"] for entry in chain["attempts"]]
    seconds = iter(trained)
    held = [
        spent(entry, records, next(seconds) if records else 0.0)
        for entry, records in zip(chain["attempts"], lines, strict=True)
    ]
    allocated = sum(each.seconds for each in held)
    facts = [records[0]["ranks"] for records in lines if records]
    threads, cpus = _threads_and_cpus(facts[-1])
    return {
        "run": run.id,
        "setting": run.setting_id,
        "attempts": len(lines),
        "warmup_steps": run.length.warmup_steps,
        "train_seconds": sum(trained),
        "allocated_seconds": allocated,
        "goodput": sum(trained) / allocated if allocated else None,
        **split(held),
        "peak_memory_bytes": _peak(lines, "peak_memory_bytes"),
        "peak_main_memory_bytes": _peak(lines, "peak_main_memory_bytes"),
        **used(work, list(zip(numbers, lines, strict=True)), run.length.steps_per_epoch),
        "hosts": sorted({rank["host"] for ranks in facts for rank in ranks}),
        "virtual": any(rank.get("virtual") for ranks in facts for rank in ranks),
        "cpu_quota": min(filter(None, (rank.get("cpu_quota") for ranks in facts for rank in ranks)), default=None),
        "shares_nodes": any(entry.get("shares_nodes") for entry in chain["attempts"]),
        "threads_on_node": threads,
        "cpus_of_node": cpus,
        "device_name": " and ".join(_device_names(facts)),
        "versions": facts[-1][0]["versions"],
        "dataset": facts[-1][0].get("dataset"),
        "training_source": chain.get("training_source"),
        "adopted_from": chain.get("adopted_from"),
        "generation": chain["generation"],
        "code": chain["code"],
        "strategy_source": chain["strategy_source"],
        "started_at": datetime.fromtimestamp(chain["attempts"][0]["started"], UTC).isoformat(timespec="seconds"),
    }


def _counted(lines: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """For each attempt what counts: nothing beyond the step from which a later attempt went on.

    Records are flushed with every checkpoint, so that no block straddles one.
    """
    counted: list[dict[str, Any]] = []
    limit = float("inf")
    for records in reversed([f for f in lines if f]):
        start, losses, position = records[0]["start"], [], records[0]["start"]
        for line in records:
            position = line.get("after", position)
            for loss in line.get("losses", []):
                position += 1
                losses.append((position, loss))
        counted.append(
            {
                "start": start,
                "blocks": [b for b in _blocks(records) if b[1] <= limit],
                "losses": [pair for pair in losses if pair[0] <= limit],
                "evaluations": [e for line in records for e in line.get("evaluations", []) if e["step"] <= limit],
            }
        )
        if losses:  # one that trained nothing has trained nothing again: its segment had been done before
            limit = min(limit, start)
    return counted[::-1]


def _peak(lines: list[list[dict[str, Any]]], name: str) -> int | None:
    """The largest figure of this name at the ends of the attempts; None where none has recorded it."""
    return max((line[name] for records in lines for line in records if line.get(name) is not None), default=None)


def _counted_by_strategy(lines: list[list[dict[str, Any]]]) -> dict[str, int]:
    """What the strategy has counted, such as bytes on a disk, over all attempts that came to an end."""
    counts = [line.get("counted", {}) for records in lines for line in records if "end" in line]
    return {name: sum(each.get(name, 0) for each in counts) for name in sorted(set().union(*counts))}


def _cuda_graph(lines: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """How many steps were replayed as a CUDA graph, and why none was; nothing of a run whose steps were not to be."""
    captures = [line["cuda_graph"] for records in lines for line in records if line.get("cuda_graph")]
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


def quantiles(blocks: list[list[float]]) -> dict[str, float | None]:
    """Median and 95th percentile of a step's seconds, from the means of the blocks; None without any."""
    each = sorted(b[2] / (b[1] - b[0]) for b in blocks)
    p95 = each[min(len(each) - 1, int(0.95 * len(each)))] if each else None
    return {"step_seconds_median": median(each) if each else None, "step_seconds_p95": p95}


def thinned(losses: list[tuple[int, float]]) -> dict[str, list[float]]:
    """At most KEPT_LOSSES points of the curve, the last one among them."""
    stride = max(1, -(-len(losses) // KEPT_LOSSES))
    kept = losses[::-1][::stride][::-1]
    return {"steps": [step for step, _ in kept], "values": [value for _, value in kept]}


def _device_names(facts: list[list[dict[str, Any]]]) -> list[str]:
    """The kinds of device that the ranks of all attempts had."""
    return sorted({str(rank["device_name"]) for ranks in facts for rank in ranks})


def _threads_and_cpus(ranks: list[dict[str, Any]]) -> tuple[int, int]:
    """The threads of all ranks on the first node, and the CPUs that they had there."""
    on_node = [rank for rank in ranks if rank["host"] == ranks[0]["host"]]
    return sum(rank["threads"] for rank in on_node), on_node[0]["cpus"]


def _why_not_timed(run: Run, lines: list[list[dict[str, Any]]]) -> str:
    """Why nothing was measured: data workers may have made all batches ready, or there was no step."""
    warm_up, trained = run.length.warmup_steps, [] if run.strategy.script else [each for each in lines if each]
    if any(len(b) > 4 and b[0] >= each[0]["start"] + warm_up for each in trained for b in _blocks(each)):
        return (
            "nothing was measured: data workers may have made all batches ready in pauses; evaluate less often "
            "(evaluate_every_epochs), or give fewer data_workers"
        )
    return f"no step after the {warm_up} of warm-up: nothing was measured"


def _blocks(lines: list[dict[str, Any]]) -> list[list[float]]:
    return [block for line in lines for block in line.get("blocks", [])]


def remarks(run: Run, measured_steps: int, chain: dict[str, Any], lines: list[list[dict[str, Any]]]) -> str:
    """What a reader has to know of a run that is done, '' where there is nothing."""
    facts, adopted = [records[0]["ranks"] for records in lines if records], chain.get("adopted_from")
    threads, cpus = _threads_and_cpus(facts[-1])
    parts = []
    if adopted:
        whose = f"run {adopted['run']} ({adopted['strategy']} ×{adopted['world_size']})"
        parts.append(f"went on from step {adopted['step']} of {whose}")
    if not measured_steps:
        parts.append(_why_not_timed(run, lines))
    if len(names := _device_names(facts)) > 1:
        parts.append(f"its speed is one over {' and '.join(names)}: name the kind of node in the site's file")
    if len({json.dumps(ranks[0]["versions"]) for ranks in facts}) > 1:
        parts.append("its jobs had different versions of the software")
    if len({ranks[0].get("dataset") for ranks in facts}) > 1:
        parts.append("its dataset was made anew, with other content, between its jobs")
    if threads > cpus:
        parts.append(f"{threads} threads shared {cpus} CPUs")
    return "; ".join(parts)
