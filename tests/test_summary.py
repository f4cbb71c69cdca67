"""A run's summary: every step counts once, and what was lost to interruptions shows in the goodput."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest

from chain_runs import short_run
from own_tasks import spec
from relay.run_folder import run_chain as chains
from relay.run_folder.attempts import Records
from relay.run_folder.job_times import PARTS, spent
from relay.run_folder.run_chain import Attempt, RunChain
from relay.run_folder.summary import Losses, Summary
from relay.spec.run import Run, changed
from relay.training import summary as summaries
from relay.training.summary import summarise
from summaries import left_records

FACTS = {"host": "node1", "device_name": "a processor", "cpus": 4, "versions": {"torch": "2.13.0"}, "threads": 2}
END = {"stopped": None, "peak_memory_bytes": 1000}


class Written:
    """A run's directory with attempts written by hand, as the trainer and the segment write them."""

    def __init__(self, work: Path) -> None:
        self.work, self.entries, self.total_steps = work, list[dict[str, Any]](), 0

    def attempt(self, *lines: dict[str, Any], started: float = 0.0, ended: float | None = None) -> Self:
        """One attempt; without `ended` its job was killed whole.

        The last one, which has `end`, is that of the whole run, and ends with an evaluation, as every run does.
        """
        number = len(self.entries) + 1
        if ended_at := [line["end"] for line in lines if "end" in line]:
            self.total_steps = ended_at[0]
            known = [evaluation["step"] for line in lines for evaluation in line.get("evaluations", ())]
            if self.total_steps not in known:
                lines = (*lines[:-1], {"evaluations": [evaluated(self.total_steps)]}, lines[-1])
        self.entries.append({"number": number, "started": started} | ({} if ended is None else {"ended": ended}))
        if lines:
            left_records(self.work, number, *({"time": started} | line for line in lines))
        return self

    def summary(self, run: Run) -> Summary:
        """What the summary makes of them."""
        chain = {"generation": "1", "code": "c0de", "strategy_source": "5ou2ce", "attempts": self.entries}
        (self.work / "chain.json").write_text(json.dumps(chain))
        return summarise(changed(run, total_steps=self.total_steps or run.length.total_steps), self.work)


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


@pytest.fixture
def run() -> Run:
    """Batches of 64, no warm-up: the figures can be reckoned in one's head."""
    return changed(short_run(spec("lenet-digits")), warmup_steps=0)


def begin(step: int = 0, *facts: dict[str, Any]) -> dict[str, Any]:
    return {"start": step, "ranks": list(facts) or [FACTS]}


def steps(
    first: int, last: int, *, seconds: float = 0.1, each: int = 1, of: str = "", evaluations: Any = ()
) -> dict[str, Any]:
    """A flush of the steps after `first` up to `last`, in blocks of `each`; `of` marks the losses' attempt."""
    blocks = [[n, min(n + each, last), seconds * (min(n + each, last) - n), 0.0] for n in range(first, last, each)]
    offset = {"": 0.0, "lost": 1000.0}[of]
    return {"blocks": blocks, "losses": [n + offset for n in range(first + 1, last + 1)], "evaluations": evaluations}


def evaluated(step: int, accuracy: float | None = 0.5, loss: float = 1.0) -> dict[str, Any]:
    return {"step": step, "test_loss": loss, "test_accuracy": accuracy}


def test_an_uncut_run(written: Written, run: Run) -> None:
    ends = [evaluated(5, 0.4, 2.0), evaluated(10, 0.75, 1.5)]
    written.attempt(begin(), steps(0, 10, evaluations=ends), {"end": 10} | END, started=100.0, ended=102.0)
    found = written.summary(run)
    assert (found.status, found.reason, found.measured_steps) == ("done", "", 10)
    assert (found.samples_per_second, found.step_seconds_median) == (pytest.approx(640), pytest.approx(0.1))
    assert [found.train_seconds, found.allocated_seconds, found.goodput] == pytest.approx([1.0, 2.0, 0.5])
    assert (found.test_accuracy, found.test_loss, found.train_loss) == (0.75, 1.5, 10.0)
    assert found.losses == Losses(list(range(1, 11)), [float(n) for n in range(1, 11)])
    assert found.evaluations == tuple(ends)
    assert found.peak_memory_bytes == 1000
    assert (found.code, found.strategy_source) == ("c0de", "5ou2ce")
    assert found.started_at == "1970-01-01T00:01:40+00:00"
    assert (found.hosts, found.device_name) == (["node1"], "a processor")
    kept = json.dumps(found.as_dict())
    assert json.dumps(Summary.of(json.loads(kept)).as_dict()) == kept


def test_steps_trained_twice_count_once(written: Written, run: Run) -> None:
    """Killed at step 8 with its newest checkpoint at 5: of steps 6 to 8 those of the next attempt count."""
    first = steps(0, 5, evaluations=[evaluated(4)])
    lost = steps(5, 8, of="lost", seconds=9.0, evaluations=[evaluated(7, 0.1)])
    written.attempt(begin(), first, lost, started=0.0, ended=1.0)
    again = steps(5, 10, evaluations=[evaluated(7, 0.6), evaluated(10, 0.7)])
    written.attempt(begin(5), again, {"end": 10} | END, started=1.0, ended=2.0)
    found = written.summary(run)
    assert found.losses.values == [float(n) for n in range(1, 11)]
    assert found.measured_steps == 10
    assert found.train_seconds == pytest.approx(1.0), "the three lost steps of 9 seconds are no training that counted"
    assert [(e["step"], e["test_accuracy"]) for e in found.evaluations] == [(4, 0.5), (7, 0.6), (10, 0.7)]
    assert found.attempts == 2


def test_an_attempt_from_further_back_takes_away_from_all_before_it(written: Written, run: Run) -> None:
    """The newest checkpoint was damaged: the third attempt goes on from before the second one's start."""
    written.attempt(begin(), steps(0, 6), started=0, ended=1)
    written.attempt(begin(6), steps(6, 8, of="lost"), started=1, ended=2)
    written.attempt(begin(3), steps(3, 10), {"end": 10} | END, started=2, ended=3)
    found = written.summary(run)
    assert found.losses.steps == list(range(1, 11))
    assert found.losses.values == [float(n) for n in range(1, 11)]
    assert found.measured_steps == 10


def test_a_job_that_was_killed_whole_is_charged_until_its_last_sign_of_life(written: Written, run: Run) -> None:
    """Nobody was left to note its end; of one without a single line not even the start's second is known."""
    written.attempt(begin(), steps(0, 5) | {"time": 104.0}, started=100.0)
    written.attempt(started=200.0)
    written.attempt(begin(5), steps(5, 10), {"end": 10} | END, started=300.0, ended=301.0)
    found = written.summary(run)
    assert found.allocated_seconds == pytest.approx(5.0)
    assert found.goodput == pytest.approx(1.0 / 5.0)


def test_the_warm_up_of_every_attempt_is_left_out(written: Written, run: Run) -> None:
    """Its steps count as training, not as speed: each start warms up anew."""
    slow, fast = {"seconds": 1.0}, {"seconds": 0.1}
    written.attempt(begin(), steps(0, 2, **slow), steps(2, 5, **fast), started=0, ended=3)
    written.attempt(begin(5), steps(5, 7, **slow), steps(7, 10, **fast), {"end": 10} | END, started=3, ended=6)
    found = written.summary(changed(run, warmup_steps=2))
    assert found.measured_steps == 6
    assert found.samples_per_second == pytest.approx(640)
    assert found.train_seconds == pytest.approx(4.6)


def test_steps_whose_batches_were_ready_are_trained_and_not_timed(written: Written, run: Run) -> None:
    """The steps that are timed are twice as fast in their second half."""
    line = {"blocks": [[0, 1, 0.1, 0.0, 1], [1, 2, 1.0, 0.0], [2, 3, 0.1, 0.0, 1], [3, 4, 0.5, 0.0]]}
    written.attempt(begin(), line | {"losses": [1, 2, 3, 4]}, {"end": 4} | END, started=0, ended=4)
    found = written.summary(changed(run, warmup_steps=0))
    assert (found.measured_steps, found.train_seconds) == (2, pytest.approx(1.7))
    assert found.samples_per_second == pytest.approx(2 * run.batch.global_batch_size / 1.5)
    assert found.second_half_ratio == pytest.approx(2)
    assert found.reason == ""
    told = written.summary(changed(run, warmup_steps=4)).reason
    assert told == "no step after the 4 of warm-up: nothing was measured"


# The time of a run's jobs is split into parts that add up: starts, loading, steps, what was lost, saves, the rest

ENTRY = Attempt(number=1, submitted=40.0, job_started=100.0, started=110.0, ended=200.0, job="7")


def records(*, ended: bool = True) -> list[dict[str, Any]]:
    """Launched at 115, begun at 125, 40 seconds of steps, 9 of evaluation, 6 of saving, the last record at 190."""
    lines: list[dict[str, Any]] = [
        {"time": 125.0, "start": 0, "launched": 115.0},
        {"time": 150.0, "blocks": [[0, 10, 20.0, 0.0]], "paused": {"evaluation": 4.0}},
        {"time": 180.0, "blocks": [[10, 20, 20.0, 0.0]], "paused": {"evaluation": 5.0, "saving": 2}},
    ]
    lines = [line | ({"losses": [1.0] * 10} if "blocks" in line else {}) for line in lines]
    return [*lines, {"time": 190.0, "end": 20, "paused": {"saving": 4.0}}] if ended else lines


def test_a_run_whose_loss_is_not_finite_has_failed(written: Written, run: Run) -> None:
    written.attempt(begin(), steps(0, 4, evaluations=[evaluated(4, loss=float("inf"))]), {"end": 4} | END, ended=1.0)
    summary = written.summary(run)
    assert summary.status == "failed"
    assert summary.reason.startswith("the test loss of step 4 is inf: the training diverged")


def test_the_parts_of_a_job_add_up_to_its_time() -> None:
    found = spent(ENTRY, Records(records()), 40.0)
    assert found.parts == {
        "startup": 15.0, "loading": 10.0, "steps": 40.0, "repeated": 0.0, "evaluation": 9.0, "saving": 6.0, "idle": 20.0
    }  # fmt: skip
    assert tuple(found.parts) == PARTS
    assert (found.seconds, found.queued, found.last) == (100.0, 60.0, 20)


def test_what_a_first_evaluation_compiles_is_of_the_start_and_no_evaluation() -> None:
    """It takes 24 seconds where the next one takes 4."""
    begin, one, two, end = records()
    one |= {"paused": {"first evaluation": 24.0}, "evaluations": [{"step": 10}]}
    two |= {"paused": {"evaluation": 4.0}, "evaluations": [{"step": 20}]}
    parts = spent(ENTRY, Records([begin, one, two, end]), 40.0).parts
    assert (parts["loading"], parts["evaluation"]) == (10.0 + 20.0, 4.0 + 4.0)


def test_steps_done_again_are_those_recorded_and_those_that_a_kill_took() -> None:
    """It was killed at 200, 20 seconds after its last record; the next attempt went on from step 10."""
    found = spent(ENTRY, Records(records(ended=False)), 20.0)
    assert (found.parts["steps"], found.parts["repeated"]) == (20.0, 20.0 + 20.0)
    assert (found.parts["saving"], found.last) == (2.0, 20)
    assert found.seconds == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("line", "reached", "nothing"),
    [
        ({"blocks": [], "read": {}}, 20, True),
        ({"blocks": [], "read": {"accuracy": [0.9]}}, 0, False),  # a script that was killed before its evaluation
        ({}, 40, False),  # the line with the steps was damaged
    ],
)
def test_what_a_job_alone_can_tell_is_not_forgotten(line: dict[str, Any], reached: int, nothing: bool) -> None:
    end = {"end": reached, "stopped": None, "first_at": None}
    assert Records([begin(20), line, end]).trained_nothing is nothing


def test_a_job_that_ends_late_notes_its_end_in_its_own_start_alone(tmp_path: Path) -> None:
    first = Attempt(number=1, started=110.0)
    chain = RunChain(generation="new", code="c", strategy_source="s", attempts=(first,))
    chain.write(tmp_path)
    chains.note_end(tmp_path, "old", 1, 200.0)
    assert chains.read(tmp_path) == chain
    chains.note_end(tmp_path, "new", 1, 200.0)
    assert chains.read(tmp_path) == replace(chain, attempts=(replace(first, ended=200.0),))


def test_ranks_that_have_cpus_of_their_own_share_none() -> None:
    ranks = [{"host": "a", "threads": 2, "cpus": 2, "affinity": [2 * rank, 2 * rank + 1]} for rank in range(4)]
    assert summaries._threads_and_cpus(ranks) == (8, 8)
    assert summaries._threads_and_cpus([each | {"affinity": [0, 1]} for each in ranks]) == (8, 2)
