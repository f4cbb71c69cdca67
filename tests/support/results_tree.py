"""Results folders as the stages before the comparison leave them, and what is printed of them."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from relay import commands
from relay.base import entry
from relay.base.files import read_json, write_json
from relay.comparison import words
from relay.comparison.answer import Answer
from relay.comparison.choice import Compared
from relay.comparison.columns import COMPARISON, read_csv, write_csv
from relay.comparison.decision import answers
from relay.comparison.inputs import Inputs, read_inputs
from relay.comparison.setting_result import SettingResult, setting_results
from relay.comparison.table import comparison_rows
from relay.spec.job import Job
from relay.spec.run import Reference, Run
from short_tasks import shipped
from specifications import made

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def status(*words: str) -> Any:
    """The exit status of a command with its options."""
    with pytest.raises(SystemExit) as ended:
        entry.run(lambda: commands.start(words))
    return ended.value.code


class Tree:
    """A results folder as the stages before the comparison leave it."""

    def __init__(self, root: Path, margin: float = 0.03) -> None:
        self.root, self.runs, self.skipped, self.margin = root / "results", [], [], margin
        self.rules: dict[str, Any] = {}  # of the answer, as the plan writes them
        self.dropped: dict[str, str] = {}  # why settings got no further repeats
        self.more: dict[str, Any] = {}  # of the plan

    def write(self, path: str, value: Any) -> Path:
        write_json(self.root / path, value)
        return self.root / path

    def skip(self, strategy: str, reason: str, **values: Any) -> None:
        """A setting that was skipped."""
        values = {"global_batch_size": 64, "epochs": 2.0, "steps_per_epoch": 22, "total_steps": 44} | values
        file = str(SCRIPTS / f"relay/strategies/{strategy}.py")
        chosen = {"strategy": strategy, "strategy_file": file, "evaluate_every_steps": 22}
        its = shipped("lenet-digits")
        skipped = made(Reference, id="", seed=0, task=its.task, dataset=its.dataset, **chosen, **values)
        setting = {name: value for name, value in asdict(skipped).items() if name not in ("id", "seed")}
        self.skipped.append({"setting": setting, "reasons": [reason]})

    def setting(
        self,
        strategy: str,
        speeds: Sequence[float | None],
        *,
        name: str = "",
        accuracies: Sequence[float | None] = (),
        verdict: dict[str, Any] | None = None,
        summary: dict[str, Any] | None = None,
        **changes: Any,
    ) -> list[str]:
        """One setting with a repeat for each speed; returns the runs' ids.

        `changes` are declared fields, the name of a built-in `task`, `task_options`, and the names of its `metrics`.
        """
        its = shipped(changes.pop("task", "lenet-digits"))
        options = {**its.task.options, **changes.pop("task_options", {})}
        task = replace(its.task, options=options, metrics=changes.pop("metrics", its.task.metrics))
        setting = name or f"{strategy}-{len(self.runs)}"
        devices = changes.get("devices_per_node", 1)
        several = {"launcher": "torchrun" if devices > 1 else "none"}
        fields = {"global_batch_size": 64, "epochs": 2.0, "steps_per_epoch": 22, "total_steps": 44} | several | changes
        ids = []
        for repeat, speed in enumerate(speeds):
            run = made(
                Run, id=f"{setting}-r{repeat}", setting_id=setting, repeat=repeat, seed=1 + repeat, task=task,
                dataset=its.dataset, strategy=strategy,
                strategy_file=str(SCRIPTS / f"relay/strategies/{strategy}.py"),
                evaluate_every_steps=22, **fields,
            )  # fmt: skip
            run.write(self.root / "runs" / run.id / "run.json")
            accuracy = accuracies[repeat] if accuracies else 0.9 + repeat / 100
            self.write(f"runs/{run.id}/summary.json", self._summary(run, speed, accuracy) | (summary or {}))
            self.runs.append({"id": run.id, "setting": setting, "gate": f"gate-{setting}", "segments": [22, 44]})
            ids.append(run.id)
        said = self._verdict(setting) | (verdict or {})
        own = {"global_batch_size": run.batch.global_batch_size, "learning_rate": run.task.learning_rate}
        nothing = {"parts": [], "problems": [], "notes": []}
        said = {"own_batches": [{**own, "equivalent": said["equivalent"], **nothing}]} | said
        said["gate"] = f"gate-{setting}"
        self.write(f"equivalence/gates/gate-{setting}/verdict.json", said)
        return ids

    def record(self, ids: Sequence[str], **figures: Sequence[Any]) -> None:
        """Other figures in the summaries of a setting's repeats: a value for each repeat."""
        for repeat, identity in enumerate(ids):
            path = f"runs/{identity}/summary.json"
            self.write(path, read_json(self.root / path) | {name: values[repeat] for name, values in figures.items()})

    def give_job(self, identity: str, **asked: Any) -> None:
        """What a run's job asks of a cluster, in its specification."""
        path = self.root / "runs" / identity / "run.json"
        Run.read(path).write(path, Job(**asked))

    @staticmethod
    def _summary(run: Run, speed: float | None, accuracy: float | None) -> dict[str, Any]:
        """Of a run whose jobs take no time beside their steps."""
        steps_seconds = run.length.total_steps * run.batch.global_batch_size / (speed or 1000.0)
        return {
            "run": run.id, "setting": run.setting_id, "status": "done", "segments": 2, "attempts": 2,
            "samples_per_second": speed, "measured_steps": 4800, "step_seconds_median": 0.003,
            "step_seconds_p95": 0.004, "data_wait_fraction": 0.02, "train_seconds": steps_seconds,
            "allocated_seconds": steps_seconds,
            "goodput": 0.5 + 0.1 * run.repeat, "peak_memory_bytes": 1000 + run.repeat, "test_accuracy": accuracy,
            "peak_main_memory_bytes": (300 + run.repeat) * 2**20,
            "test_loss": 0.1, "train_loss": 0.05,
            "evaluations": [{"step": 22, "test_loss": 0.2, "test_accuracy": accuracy}],
            "losses": {"steps": [1, 22, 44], "values": [2.3, 0.5, 0.05]}, "hosts": ["node1"],
            "device_name": "AMD EPYC", "versions": {"torch": "2.13.0+cpu", "python": "3.11.2", "cuda": None},
            "code": "c0de",
            "strategy_source": "5eed", "reason": "", "started_at": "2026-01-02T03:04:05+00:00",
        }  # fmt: skip

    @staticmethod
    def _verdict(setting: str) -> dict[str, Any]:
        what = "largest difference of losses"
        part = {"name": "algorithm", "passed": True, "figure": 3e-16, "limit": 1e-9, "what": what}
        return {
            "gate": f"gate-{setting}", "equivalent": True, "max_loss_difference": 3e-16, "parts": [part],
            "problems": [], "notes": ["dropout switched off"], "samples_per_rank": [32.0, 32.0],
            "bytes_sent_per_step": [247400, 247400], "strategy_source": "5eed",
        }  # fmt: skip

    def compare(self, *arguments: str) -> int:
        return status("compare", "--plan", str(self.write_plan()), "--results", str(self.root), *arguments)

    def write_plan(self) -> Path:
        told = {"margin": self.margin, "answer": self.rules, "dropped": self.dropped, **self.more}
        return self.write("plan.json", {"runs": self.runs, "skipped": self.skipped, **told})

    def inputs(self, *, partial: bool = False) -> Inputs:
        return read_inputs(self.write_plan(), self.root, partial=partial)

    def answers(self, *, partial: bool = False) -> list[Answer]:
        inputs = self.inputs(partial=partial)
        return answers(inputs, comparison_rows(inputs))

    def answer(self, *, partial: bool = False) -> Answer:
        (found,) = self.answers(partial=partial)
        return found

    def settings(self) -> list[SettingResult]:
        inputs = self.inputs()
        return setting_results(inputs, comparison_rows(inputs))

    def rows(self, *, partial: bool = False) -> list[dict[str, Any]]:
        """comparison.csv, written and read again; without the report, whose plots take half a second."""
        write_csv(self.root / "comparison.csv", COMPARISON, comparison_rows(self.inputs(partial=partial)))
        return read_csv(self.root / "comparison.csv", COMPARISON)

    def row(self, strategy: str, *, partial: bool = False) -> dict[str, Any]:
        (row,) = [row for row in self.rows(partial=partial) if row["strategy"] == strategy]
        return row

    def fail(self, identity: str, error: str | None) -> None:
        (self.root / "runs" / identity / "summary.json").unlink()
        if error is not None:
            fault = {"error": error, "rank": 1, "traceback": "Traceback …", "segment_end": 22}
            self.write(f"checkpoints/{identity}/fault.json", fault)

    @property
    def html(self) -> str:
        return (self.root / "comparison.html").read_text(encoding="utf-8")


def rows(results: Path, name: str = "comparison.csv") -> list[dict[str, str]]:
    """A table of a results folder as it is written, each value as text."""
    with (results / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def best(found: Answer) -> str:
    """The recommended setting, by its name."""
    assert found.best
    return str(found.best.row["setting"])


def of(found: Answer, setting: str) -> Compared:
    """How this setting was compared with it."""
    return next(each for each in found.others if each.other.row["setting"] == setting)


def told(answer: Answer) -> str:
    """All that an answer says."""
    lines = [words.told(what, answer) for what in ("sentence", "certainty", "why_not_the_fastest")]
    return " ".join([*lines, *words.paragraphs("reasons", answer)])


# As many samples an epoch, and as many epochs, as the others.
LARGE = {"global_batch_size": 512, "steps_per_epoch": 3, "total_steps": 6}
REFUSED = {
    "equivalent": False,
    "max_loss_difference": 0.25,
    "parts": [{"name": "algorithm", "passed": False, "figure": 0.25, "limit": 1e-9, "what": "difference of losses"}],
    "problems": ["algorithm: losses differ by 0.25; at most 1e-9 is allowed"],
}


def shown(tree: Tree, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int = 80) -> str:
    """What `relay show-comparison` prints into a pipe from the folder that holds the results."""
    monkeypatch.chdir(tree.root.parent)
    monkeypatch.setenv("COLUMNS", str(columns))
    capsys.readouterr()
    assert status("show-comparison", "--results", "results") == 0
    return capsys.readouterr().out


def full(root: Path) -> Tree:
    """A comparison with everything in it, and with names and reasons that try to be markup."""
    tree = Tree(root)
    tree.setting("cpu", [20500.0, 20700.0, 20400.0], threads=2, cpus_per_task=2)
    tree.setting("cpu", [12900.0, 12800.0, 13050.0])
    tree.setting("ddp", [19900.0, 20800.0, 18900.0], devices_per_node=2)
    tree.setting("ddp", [41000.0, 40900.0, 41100.0], devices_per_node=2, options={"hook": "<b>$x_1$"}, verdict=REFUSED)
    failing = tree.setting("ddp", [9000.0, 9100.0, 9200.0], devices_per_node=4)
    for identity in failing[1:]:
        tree.fail(identity, "RuntimeError: <script>alert(1)</script> & [bold]more[/bold]")
    tree.skip("single_gpu", "<img src=x>", device="cuda")
    assert tree.compare("--partial") == 0
    return tree
