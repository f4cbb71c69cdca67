"""Every schedule of the pipelines would get through with NCCL, which need not buffer: by what ranks really send."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from preloaded import spawned
from relay import strategies
from relay.process.ranks import Ranks
from relay.spec.schedules import SCHEDULES
from relay.task.bound import BoundTask
from rendezvous import stuck, written_down
from short_tasks import task

Case = tuple[str, int, dict[str, Any]]  # strategy, samples of a replica, options


def of_sixteen_layers() -> BoundTask:
    """A GPT that eight processes can divide into two stages each."""
    return task("gpt-deep-tiny", precision="fp32", options={"width": 8, "heads": 1, "depth": 13})


def cases_for(processes: int) -> list[Case]:
    """All that sends layers' outputs from rank to rank, with as few micro-batches as ranks, and with twice as many."""
    few_and_more = [
        ("pipeline", count, {"schedule": name, "micro_batches": count})
        for name, schedule in SCHEDULES.items()
        for count in (processes, 2 * processes)
        if not [*schedule.problems(processes, count, compiled=False, channels_last=False)]
    ]
    assert {options["schedule"] for _, _, options in few_and_more} == set(SCHEDULES)
    halves = [
        ("pipeline_ddp", processes, {"schedule": name, "micro_batches": processes, "stages": processes // 2})
        for name in SCHEDULES
        if processes >= 4 and processes % 2 == 0
    ]
    return [*few_and_more, *halves, ("model_parallel", 2, {})]


def _train(ranks: Ranks, folder: Path, cases: list[Case]) -> None:
    """Two steps and a prediction of each case. This rank's batches, for each of them, into a file."""
    trained = of_sixteen_layers()
    alike = {"call_seconds": defaultdict(lambda: 1.0)}
    logs = []
    for name, samples, options in cases:
        replicas = ranks.world_size // options.get("stages", ranks.world_size)
        batch = trained.example(samples)
        with written_down() as log:
            strategy = strategies.load(name)(trained, ranks, samples * replicas, options, alike)
            for _ in strategy.train_steps(iter([batch] * 2)):
                pass
            strategy.predict(batch)
        logs.append(log)
    (folder / f"{ranks.rank}.pickle").write_bytes(pickle.dumps(logs))


@pytest.mark.long
def test_what_stages_send_is_received_in_the_same_kind_of_batch(tmp_path: Path) -> None:
    """No other test shows that a schedule does not hang on NCCL."""
    processes = 4
    cases = cases_for(processes)
    spawned(_train, processes, tmp_path, cases)
    by_rank = [pickle.loads((tmp_path / f"{rank}.pickle").read_bytes()) for rank in range(processes)]
    for case, logs in zip(cases, zip(*by_rank, strict=True), strict=True):
        assert all(logs), case  # each rank sends or receives something
        if case[2].get("schedule") == "1f1b":  # the others send everything alone, but for old versions of torch
            assert any(batch.together for log in logs for batch in log), case
        assert stuck(logs) is None, case
