"""A run's summary: every step counts once, and what was lost to interruptions shows in the goodput."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chain_runs import short_run
from own_tasks import spec
from relay.run_folder import attempts
from relay.spec.run import Run, changed
from relay.training.summary import summarise

FACTS = {
    "host": "node1",
    "device_name": "a processor",
    "cpus": 4,
    "versions": {"python": "3.11", "torch": "2.13.0", "cuda": None, "nccl": None},
    "threads": 2,
}
END = {"stopped": None, "peak_memory_bytes": 1000}


class Written:
    """A run's directory with attempts written by hand, as the trainer and the segment write them."""

    def __init__(self, work: Path) -> None:
        self.work, self.entries, self.total_steps = work, list[dict[str, Any]](), 0

    def attempt(
        self, *lines: dict[str, Any], started: float = 0.0, ended: float | None = None, tail: str = ""
    ) -> Written:
        """One attempt; without `ended` its job was killed whole, `tail` is a line that this cut off.

        The last one, which has `end`, is that of the whole run, and ends with an evaluation, as every run does.
        """
        number = len(self.entries) + 1
        if ended_at := [line["end"] for line in lines if "end" in line]:
            self.total_steps = ended_at[0]
            known = [evaluation["step"] for line in lines for evaluation in line.get("evaluations", ())]
            if self.total_steps not in known:
                lines = (*lines[:-1], {"evaluations": [evaluated(self.total_steps)]}, lines[-1])
        self.entries.append({"number": number, "started": started} | ({} if ended is None else {"ended": ended}))
        if lines or tail:
            path = attempts.attempt_path(self.work, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps({"time": started} | line) + "\n" for line in lines) + tail)
        return self

    def summary(self, run: Run) -> dict[str, Any]:
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
    assert found["status"] == "done"
    assert found["reason"] == ""
    assert found["samples_per_second"] == pytest.approx(640)
    assert found["measured_steps"] == 10
    assert found["step_seconds_median"] == pytest.approx(0.1)
    assert found["train_seconds"] == pytest.approx(1.0)
    assert found["allocated_seconds"] == pytest.approx(2.0)
    assert found["goodput"] == pytest.approx(0.5)
    assert (found["test_accuracy"], found["test_loss"], found["train_loss"]) == (0.75, 1.5, 10.0)
    assert found["losses"] == {"steps": list(range(1, 11)), "values": [float(n) for n in range(1, 11)]}
    assert found["evaluations"] == ends
    assert found["peak_memory_bytes"] == 1000
    assert (found["code"], found["strategy_source"]) == ("c0de", "5ou2ce")
    assert found["started_at"] == "1970-01-01T00:01:40+00:00"
    assert (found["hosts"], found["device_name"]) == (["node1"], "a processor")


def test_a_run_on_several_kinds_of_node_says_so(written: Written, run: Run) -> None:
    written.attempt(begin(0), steps(0, 5), started=0, ended=1)
    other = FACTS | {"host": "node2", "device_name": "a newer one", "versions": FACTS["versions"] | {"torch": "2.14.0"}}
    written.attempt(begin(5, other), steps(5, 10), {"end": 10} | END, started=1, ended=2)
    found = written.summary(run)
    assert (found["hosts"], found["device_name"]) == (["node1", "node2"], "a newer one and a processor")
    assert "its speed is one over a newer one and a processor" in found["reason"]
    assert "different versions" in found["reason"]


def test_a_job_that_found_its_segment_done_takes_no_steps_from_others(written: Written, run: Run) -> None:
    """As where a copy of the results has newer times, so that finished jobs are started again."""
    written.attempt(begin(0), steps(0, 5), {"end": 5} | END, started=0.0, ended=1.0)
    written.attempt(begin(5), steps(5, 10, evaluations=[evaluated(10)]), {"end": 10} | END, started=1.0, ended=2.0)
    written.attempt(begin(5), steps(5, 5), {"end": 5, "evaluations": []} | END, started=2.0, ended=3.0)
    written.attempt(begin(10), steps(10, 10), {"end": 10, "evaluations": [evaluated(10)]} | END, started=3.0, ended=4.0)
    found = written.summary(run)
    assert (found["status"], found["losses"]["values"]) == ("done", [float(n) for n in range(1, 11)])


def test_steps_trained_twice_count_once(written: Written, run: Run) -> None:
    """Killed at step 8 with its newest checkpoint at 5: of steps 6 to 8 those of the next attempt count."""
    first = steps(0, 5, evaluations=[evaluated(4)])
    lost = steps(5, 8, of="lost", seconds=9.0, evaluations=[evaluated(7, 0.1)])
    written.attempt(begin(), first, lost, started=0.0, ended=1.0)
    again = steps(5, 10, evaluations=[evaluated(7, 0.6), evaluated(10, 0.7)])
    written.attempt(begin(5), again, {"end": 10} | END, started=1.0, ended=2.0)
    found = written.summary(run)
    assert found["losses"]["values"] == [float(n) for n in range(1, 11)]
    assert found["measured_steps"] == 10
    assert found["train_seconds"] == pytest.approx(1.0), (
        "the three lost steps of 9 seconds are no training that counted"
    )
    assert [(e["step"], e["test_accuracy"]) for e in found["evaluations"]] == [(4, 0.5), (7, 0.6), (10, 0.7)]
    assert found["attempts"] == 2


def test_an_attempt_from_further_back_takes_away_from_all_before_it(written: Written, run: Run) -> None:
    """The newest checkpoint was damaged: the third attempt goes on from before the second one's start."""
    written.attempt(begin(), steps(0, 6), started=0, ended=1)
    written.attempt(begin(6), steps(6, 8, of="lost"), started=1, ended=2)
    written.attempt(begin(3), steps(3, 10), {"end": 10} | END, started=2, ended=3)
    found = written.summary(run)
    assert found["losses"]["steps"] == list(range(1, 11))
    assert found["losses"]["values"] == [float(n) for n in range(1, 11)]
    assert found["measured_steps"] == 10


def test_a_job_that_was_killed_whole_is_charged_until_its_last_sign_of_life(written: Written, run: Run) -> None:
    """Nobody was left to note its end; of one without a single line not even the start's second is known."""
    written.attempt(begin(), steps(0, 5) | {"time": 104.0}, started=100.0)
    written.attempt(started=200.0)
    written.attempt(begin(5), steps(5, 10), {"end": 10} | END, started=300.0, ended=301.0)
    found = written.summary(run)
    assert found["allocated_seconds"] == pytest.approx(5.0)
    assert found["goodput"] == pytest.approx(1.0 / 5.0)


def test_a_line_that_was_cut_off_is_left_out_and_the_others_count(written: Written, run: Run) -> None:
    written.attempt(begin(), steps(0, 4), started=0, ended=1, tail=json.dumps(steps(4, 8, of="lost"))[:-1])
    written.attempt(begin(4), steps(4, 10), {"end": 10} | END, started=1, ended=2)
    assert written.summary(run)["losses"]["values"] == [float(n) for n in range(1, 11)]


def test_the_warm_up_of_every_attempt_is_left_out(written: Written, run: Run) -> None:
    """Its steps count as training, not as speed: each start warms up anew."""
    slow, fast = {"seconds": 1.0}, {"seconds": 0.1}
    written.attempt(begin(), steps(0, 2, **slow), steps(2, 5, **fast), started=0, ended=3)
    written.attempt(begin(5), steps(5, 7, **slow), steps(7, 10, **fast), {"end": 10} | END, started=3, ended=6)
    found = written.summary(changed(run, warmup_steps=2))
    assert found["measured_steps"] == 6
    assert found["samples_per_second"] == pytest.approx(640)
    assert found["train_seconds"] == pytest.approx(4.6)


def test_steps_whose_batches_were_ready_are_trained_and_not_timed(written: Written, run: Run) -> None:
    """The steps that are timed are twice as fast in their second half."""
    line = {"blocks": [[0, 1, 0.1, 0.0, 1], [1, 2, 1.0, 0.0], [2, 3, 0.1, 0.0, 1], [3, 4, 0.5, 0.0]]}
    written.attempt(begin(), line | {"losses": [1, 2, 3, 4]}, {"end": 4} | END, started=0, ended=4)
    found = written.summary(changed(run, warmup_steps=0))
    assert (found["measured_steps"], found["train_seconds"]) == (2, pytest.approx(1.7))
    assert found["samples_per_second"] == pytest.approx(2 * run.batch.global_batch_size / 1.5)
    assert found["second_half_ratio"] == pytest.approx(2)
    assert found["reason"] == ""
    told = written.summary(changed(run, warmup_steps=4))["reason"]
    assert told == "no step after the 4 of warm-up: nothing was measured"


def test_a_run_whose_batches_were_all_ready_says_what_to_change(written: Written, run: Run) -> None:
    line = {"blocks": [[0, 1, 0.1, 0.0], [1, 4, 0.1, 0.0, 1]], "losses": [1, 2, 3, 4]}
    written.attempt(begin(), line, {"end": 4} | END, started=0, ended=4)
    told = written.summary(changed(run, warmup_steps=1))["reason"]
    assert told.startswith("nothing was measured: data workers may have made all batches ready in pauses; ")
    assert "(evaluate_every_epochs), or give fewer data_workers" in told


def test_a_run_whose_loss_is_not_finite_has_failed(written: Written, run: Run) -> None:
    written.attempt(begin(), steps(0, 4, evaluations=[evaluated(4, loss=float("inf"))]), {"end": 4} | END, ended=1.0)
    summary = written.summary(run)
    assert summary["status"] == "failed"
    assert summary["reason"].startswith("the test loss of step 4 is inf: the training diverged")
