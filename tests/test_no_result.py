"""Records that are no result, that tell steps twice, or that are those of another run: none is taken for a result."""

import math
from pathlib import Path
from typing import Any

import pytest

from chain_runs import DIGITS, VECTORS, Bench, short_run
from own_tasks import spec
from relay.base.files import write_json
from relay.run_folder import attempts
from relay.run_folder.places import Places
from relay.spec.run import Run, changed
from relay.training.summary import kept_losses, no_result, summarise
from results_tree import Tree, status
from summaries import left_records

LOSSES = [(step, 2.0 - step / 10) for step in range(1, 13)]
EVALUATED = [{"step": 12, "test_loss": 0.5, "test_accuracy": 0.9}]
# One replica of two reports no number, at the last step alone: the mean of both is none.
LAST_LOSS_OF_ONE_REPLICA = """pass

    def train_step(self, batch):
        self.steps = getattr(self, "steps", 0) + 1
        loss = super().train_step(batch)
        return loss * float('nan') if self.steps == 6 and self.ranks.rank == 1 else loss

    def unused(self, batch):"""


@pytest.fixture(scope="module")
def run() -> Run:
    return changed(short_run(DIGITS), total_steps=12)


def test_whole_records_are_a_result(run: Run) -> None:
    assert no_result(run, LOSSES, EVALUATED) == ""
    assert no_result(run, LOSSES[5:], EVALUATED, began=5) == "", "it went on from another run's checkpoint"
    without_classes = changed(short_run(VECTORS), total_steps=12)
    assert no_result(without_classes, LOSSES, [EVALUATED[0] | {"test_accuracy": None}]) == ""


@pytest.mark.parametrize(
    ("losses", "evaluations", "told"),
    [
        (LOSSES[:4] + LOSSES[6:], EVALUATED, "2 of 12 steps have no training loss in its records, the first is 5"),
        (LOSSES, [EVALUATED[0] | {"step": 6}], "the evaluation after the last step, 12, is missing"),
        (LOSSES, [EVALUATED[0] | {"test_accuracy": None}], "the test accuracy of step 12 is missing"),
        (LOSSES, [EVALUATED[0] | {"test_accuracy": math.nan}], "the test accuracy of step 12 is nan"),
        ([*LOSSES[:-1], (12, math.nan)], EVALUATED, "the training loss of step 12 is nan"),
        ([(step, 0.25) for step, _ in LOSSES], EVALUATED, "the training loss is 0.25 at every step"),
    ],
)
def test_what_is_no_result_is_told(run: Run, losses: Any, evaluations: Any, told: str) -> None:
    assert no_result(run, losses, evaluations).startswith(told)


@pytest.mark.slow
def test_the_last_loss_of_one_replica_ends_the_run(bench: Bench) -> None:
    strategy = bench.strategy("mine", LAST_LOSS_OF_ONE_REPLICA, base="ddp")
    chain = bench.chain("results", total_steps=6, launcher="torchrun", devices_per_node=2, **strategy)
    assert chain.forked().status == 1
    assert chain.fault()["error"].startswith("the training loss of step 6 is nan")


# Records that tell the same steps twice count once, and a lost line moves no other line's steps

FACTS = {"host": "a", "device_name": "b", "cpus": 2, "versions": {}, "threads": 1}
# A user's strategy counts under any names.
LINES: list[dict[str, Any]] = [
    {"time": 1.0, "run": "run-1", "start": 0, "ranks": [FACTS]},
    {"time": 2.0, "after": 0, "losses": [4.0, 3.0], "blocks": [[0, 2, 1.0, 0.0]], "evaluations": []},
    {"time": 3.0, "after": 2, "losses": [2.0, 1.0], "blocks": [[2, 4, 1.0, 0.0]],
     "evaluations": [{"step": 4, "test_loss": 0.5, "test_accuracy": 0.9}]},
    {"time": 4.0, "end": 4, "stopped": None, "peak_memory_bytes": 1, "counted": {"bytes": 7, "attempts": 3}},
]  # fmt: skip


def recorded(folder: Path, lines: list[dict[str, Any]]) -> Path:
    """The folder of a run of four steps, with these lines of its only attempt."""
    work = folder / "run-1"
    left_records(work, 1, *lines)
    entry = {"number": 1, "started": 0.0, "ended": 5.0}
    write_json(work / "chain.json", {"generation": "1", "code": "c", "strategy_source": "s", "attempts": [entry]})
    return work


@pytest.mark.parametrize(
    "lines", [LINES[:3] + LINES, [*LINES[:2], LINES[1], *LINES[2:]]], ids=["all but its end, then all", "a line"]
)
def test_what_was_appended_again_counts_once(tmp_path: Path, lines: list[dict[str, Any]]) -> None:
    run = short_run(DIGITS, total_steps=4, warmup_steps=0)
    once, twice = recorded(tmp_path / "once", LINES), recorded(tmp_path / "twice", lines)
    assert summarise(run, twice) == summarise(run, once)
    assert kept_losses(twice) == {1: 4.0, 2: 3.0, 3: 2.0, 4: 1.0}


def test_a_lost_line_moves_no_other_steps_losses(tmp_path: Path) -> None:
    """A spot check would hold each loss against another step's, and strike the run out."""
    assert kept_losses(recorded(tmp_path, [LINES[0], *LINES[2:]])) == {3: 2.0, 4: 1.0}


# Files of one run in another one's place, damaged small ones, and clocks that jump: told, and never a wrong result


def test_what_was_copied_from_another_run_or_gate_is_told(tree: Tree, capsys: pytest.CaptureFixture[str]) -> None:
    tree.setting("ddp", [100.0], name="slow", devices_per_node=2)
    tree.setting("ddp", [900.0], name="fast", devices_per_node=2, options={"bucket_megabytes": 1})
    for file, told in {
        "runs/{}-r0/summary.json": "summary.json: is for run fast-r0, not slow-r0; remove it",
        "equivalence/gates/gate-{}/verdict.json": "verdict.json: is for gate gate-fast, not gate-slow",
    }.items():
        own = (path := tree.root / file.format("slow")).read_bytes()
        path.write_bytes((tree.root / file.format("fast")).read_bytes())
        assert tree.compare() == 1
        assert told in capsys.readouterr().err
        assert [row["setting"] for row in tree.rows(partial=True) if row["status"] == "failed"] == ["slow"]
        path.write_bytes(own)


def test_records_of_another_run_are_none(tmp_path: Path) -> None:
    for folder in ("run-1", "run-2"):
        left_records(tmp_path / folder, 1, {"time": 1.0, "run": "run-1", "start": 0, "ranks": []})
    assert [line["start"] for line in attempts.read(tmp_path / "run-1", 1).lines] == [0]
    assert not attempts.read(tmp_path / "run-2", 1)


def test_checkpoints_of_another_start_are_not_summarised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, places = short_run(spec("lenet-digits")), Places(tmp_path, "run-1")
    run.write(places.run / "run.json")
    (places.run / "start.json").write_text('{"generation": "mine"}')
    places.work.mkdir(parents=True)
    write_json(places.work / "chain.json", {"generation": "its", "code": "c", "strategy_source": "s", "attempts": []})
    assert status("summarise", "--run", "run-1", "--results", str(tmp_path)) == 1
    assert f"the records in {places.work} are those of another run, or of an older start" in capsys.readouterr().err
    assert not (places.run / "summary.json").exists()
