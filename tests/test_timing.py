"""Step times: blocks long enough to be measured, and nothing in them that is not training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise

import torch

from relay.training.timing import Stopwatch

CPU = torch.device("cpu")
# A sleep may take longer on a busy machine, never shorter: only lower bounds and differences this large are certain.
LONG = 0.1


def test_blocks_follow_each_other_without_a_gap_across_pauses_and_takes() -> None:
    """Every step from where the attempt went on is in exactly one block."""
    stopwatch, blocks = Stopwatch([CPU], 7), []
    for step in range(1, 61):
        time.sleep(0.002)
        stopwatch.tick()
        if step % 17 == 0:
            stopwatch.pause()
            stopwatch.resume()
        if step % 13 == 0:
            blocks += stopwatch.take()
    stopwatch.pause()
    blocks += stopwatch.take()
    assert blocks[0].first == 7
    assert blocks[-1].last == 67
    assert all(a.last == b.first for a, b in pairwise(blocks))
    assert all(b.last > b.first for b in blocks)


def test_what_happens_in_a_pause_does_not_count() -> None:
    """Evaluation and saving are no training time."""
    stopwatch = Stopwatch([CPU], 0)
    began = time.perf_counter()
    for _ in range(5):
        time.sleep(0.011)
        stopwatch.tick()
        stopwatch.pause()
        time.sleep(LONG)
        stopwatch.resume()
    whole = time.perf_counter() - began
    counted = sum(block.seconds for block in stopwatch.take())
    assert 5 * 0.011 <= counted <= whole - 5 * LONG


def test_waiting_for_data_is_noted_in_the_block_where_it_happened() -> None:
    def batches() -> Iterator[int]:
        for number in range(6):
            time.sleep(0.05 if number in (3, 4) else 0)
            yield number

    stopwatch, received = Stopwatch([CPU], 0), []
    for batch in stopwatch.waiting(batches()):
        received.append(batch)
        time.sleep(0.011)
        stopwatch.tick()
    blocks = stopwatch.take()
    assert received == list(range(6))
    waits = [block.data_wait_seconds for block in blocks]
    assert len(waits) == 6
    assert waits[3] >= 0.05
    assert waits[4] >= 0.05
    assert max(waits[:3]) < 0.04
    assert waits[5] < 0.04
    assert all(block.data_wait_seconds <= block.seconds for block in blocks)


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """50 samples a second."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.zeros(1)


def test_batches_that_workers_have_made_in_a_pause_are_not_timed() -> None:
    """Each pause fills the queue of two batches; at every tenth step, a fifth of the time would be missing."""
    loader = torch.utils.data.DataLoader(Slow(), batch_size=1, num_workers=1)
    stopwatch = Stopwatch([CPU], 0, warmup=3, ready=2)
    for step, _ in enumerate(stopwatch.waiting(iter(loader)), 1):
        stopwatch.tick()
        if step % 10 == 0:
            with stopwatch.paused("evaluation"):
                time.sleep(LONG)
    blocks = stopwatch.take()
    assert {block.last for block in blocks} >= {3, 12, 22, 32}, "at the warm-up's end, and where the queue is empty"
    timed = [block for block in blocks if len(block.row()) == 4 and block.first >= 3]
    assert [block.first for block in timed[:1]] == [3]
    assert sum(block.seconds for block in timed) >= 0.019 * sum(block.last - block.first for block in timed)
