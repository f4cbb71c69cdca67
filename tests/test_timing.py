"""Step times: blocks long enough to be measured, and nothing in them that is not training."""

from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from relay.training import timing
from relay.training.timing import Stopwatch

CPU = torch.device("cpu")


class Clock:
    """Time that passes only where a test says so: a busy machine changes no figure."""

    now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: made.now))
    return made


def test_blocks_follow_each_other_without_a_gap_across_pauses_and_takes(clock: Clock) -> None:
    """Every step from where the attempt went on is in exactly one block."""
    stopwatch, blocks = Stopwatch([CPU], 7), []
    for step in range(1, 61):
        clock.wait(0.002)
        stopwatch.tick()
        if step % 17 == 0:
            stopwatch.pause()
            clock.wait(3)  # evaluation and saving are no training time
            stopwatch.resume()
        if step % 13 == 0:
            blocks += stopwatch.take()
    stopwatch.pause()
    blocks += stopwatch.take()
    assert blocks[0].first == 7
    assert blocks[-1].last == 67
    assert all(a.last == b.first for a, b in pairwise(blocks))
    assert all(b.last > b.first for b in blocks)
    assert sum(block.seconds for block in blocks) == pytest.approx(0.12)


def test_waiting_for_data_is_noted_in_the_block_where_it_happened(clock: Clock) -> None:
    def batches() -> Iterator[int]:
        for number in range(6):
            clock.wait(0.05 if number in (3, 4) else 0)
            yield number

    stopwatch, received = Stopwatch([CPU], 0), []
    for batch in stopwatch.waiting(batches()):
        received.append(batch)
        clock.wait(0.011)
        stopwatch.tick()
    blocks = stopwatch.take()
    assert received == list(range(6))
    assert [block.data_wait_seconds for block in blocks] == pytest.approx([0, 0, 0, 0.05, 0.05, 0])
    assert [block.seconds for block in blocks] == pytest.approx([0.011, 0.011, 0.011, 0.061, 0.061, 0.011])


def test_batches_that_workers_have_made_in_a_pause_are_not_timed(clock: Clock) -> None:
    """Each pause fills the queue of two batches; at every tenth step, a fifth of the time would be missing."""
    queued = 0

    def batches() -> Iterator[int]:
        nonlocal queued
        for number in range(40):
            clock.wait(0.0 if queued else 0.02)
            queued = max(0, queued - 1)
            yield number

    stopwatch = Stopwatch([CPU], 0, warmup=3, ready=2)
    for step, _ in enumerate(stopwatch.waiting(batches()), 1):
        stopwatch.tick()
        if step % 10 == 0:
            with stopwatch.paused("evaluation"):
                clock.wait(1)
                queued = 2
    blocks = stopwatch.take()
    assert {block.last for block in blocks} >= {3, 12, 22, 32}, "at the warm-up's end, and where the queue is empty"
    timed = [block for block in blocks if len(block.row()) == 4 and block.first >= 3]
    assert timed[0].first == 3
    assert sum(block.seconds for block in timed) == pytest.approx(0.02 * sum(b.last - b.first for b in timed))


def test_a_pause_much_shorter_than_a_step_has_made_no_batch_ready(clock: Clock) -> None:
    """As that in which records are written, every few seconds."""
    stopwatch = Stopwatch([CPU], 0, warmup=1, ready=16)
    for _ in range(40):
        clock.wait(1.0)
        stopwatch.tick()
        with stopwatch.paused("saving"):
            clock.wait(0.01)
    rows = [block.row() for block in stopwatch.take()]
    assert [len(row) for row in rows if row[0] >= 16] == [4] * 24
