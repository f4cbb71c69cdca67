"""A task of one's own in a plan: its file, its options, its card, and what is frozen of it."""

import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import plans
from plans import CPU, DDP, ROOT
from refusals import refusal
from relay.card.looks import Looks
from relay.config.config import load
from relay.planning.plan import Plan
from relay.run_folder.snapshot import freeze
from relay.spec.arithmetic import Arithmetic
from relay.spec.tasks import NO_GPU
from short_tasks import shipped

TASK = """\
from helper import FEATURES
from relay.tasks import _linear


class Task(_linear.Linear):
    data, generated = "mine", False
    features = FEATURES
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task with a module beside it, in the working directory."""
    (tmp_path / "helper.py").write_text("FEATURES = 10\n")
    (tmp_path / "my_task.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


OWN = {"task": "my_task.py"}
CUTTABLE: dict[str, Any] = {"cuts": ("first", "second"), "uncuttable": None}
planned = partial(plans.planned, **OWN, results=Path("results"))


def seen(**changes: Any) -> None:
    """A card of the task lies where the driver keeps it, as if it had looked; `changes` are the card's."""
    looks = Looks(config=load(OWN), root=ROOT, results=Path("results"), arithmetic=Arithmetic.here())
    known = shipped("linear-random10")
    made = replace(known, task=replace(known.task, name="my-task", card=replace(known.task.card, **changes)))
    made.write(looks.place({}))


def reasons(found: Plan) -> list[str]:
    return [reason for skipped in found.skipped for reason in skipped.reasons]


def test_a_declared_file_changes_the_run_and_is_frozen_with_it(own: Path) -> None:
    (own / "my_task.py").write_text(TASK + '    files = ("labels.json", "more/rates.bin", "gone.json", "../up.json")\n')
    (own / "more").mkdir()
    (own / "more/rates.bin").write_bytes(b"\xff")
    (own / "labels.json").write_text("[1]")
    seen()
    (before,) = planned(CPU).runs
    frozen = freeze(None, before.task.file, folder=own / "code") / "relay/own_task"
    found = sorted(str(path.relative_to(frozen)) for path in frozen.rglob("*") if path.is_file())
    assert found == ["helper.py", "labels.json", "more/rates.bin", "my_task.py"]  # what is wrong is told by the look
    assert "files" not in before.task.options
    (own / "labels.json").write_text("[2]")
    seen()
    assert planned(CPU).runs[0].id != before.id


@pytest.mark.parametrize(
    ("status", "said", "told"),
    [
        (NO_GPU, "error: my_task.py:6: Torch not compiled with CUDA\n", "with CUDA; no GPU is here: leave out .cuda"),
        (-11, "", "task my_task.py: looking at it ended with status -11 and said nothing"),
    ],
)
def test_a_look_that_fails_where_no_job_can_look_is_one_line(own: Path, monkeypatch, status, said, told) -> None:
    ended = subprocess.CompletedProcess([], status, stderr=said)
    monkeypatch.setattr("relay.card.looks.subprocess.run", lambda *_, **__: ended)
    looks = Looks(config=load(OWN), root=ROOT, results=Path("results"), arithmetic=Arithmetic.here(), look=True)
    assert told in refusal(looks.looked, {})


def test_random_samples_are_read_one_by_one(own: Path) -> None:
    both = CPU | {"loader": [None, "resident"]}
    seen(random_samples=True)
    found = planned(both)
    assert [run.feeding.loader for run in found.runs] == ["dataloader"]
    (told,) = reasons(found)
    assert told.endswith("those of my-task differ from epoch to epoch; use loader dataloader")
    seen(random_samples=None, equal_shapes=None)  # nothing is refused for what is not known
    assert not reasons(planned(both))


def test_a_loss_that_is_no_mean_is_measured_only_where_that_is_asked_for(own: Path) -> None:
    seen(mean_difference=0.02)
    # cpu divides no batch, but its gate has the same reference, which proves nothing.
    assert reasons(planned(CPU, DDP)) == 2 * [
        "the loss of my-task is no mean over samples, so that a divided batch is another training; `unproven: measure` "
        "has it measured all the same"
    ]
    measured = planned(CPU, DDP, unproven="measure")
    assert {run.strategy.name for run in measured.runs} == {"cpu", "ddp"}
    assert not measured.spot_checks


GROUPED = "pipeline calls optimizer() with each stage's parameters, and that of my-task groups them by their place in"
READS = "a step of my-task's optimiser reads "
GRADIENTS = "cannot compute the gradients of those; use ddp"


@pytest.mark.parametrize(
    ("card", "compared", "skipped", "told"),
    [
        ({"grouped_by_place": True, **CUTTABLE}, ("pipeline",), 1, GROUPED),
        (CUTTABLE, ("pipeline",), 0, ""),
        ({"optimizer_scope": "tensor", **CUTTABLE}, ("pipeline", "zero1"), 1, READS),
        ({"optimizer_scope": "model", **CUTTABLE}, ("pipeline", "zero1"), 2, READS),
        ({"differentiates": True, "matrices": 1.0}, ("fsdp", "tensor_parallel"), 2, GRADIENTS),
    ],
)
def test_strategies_that_would_train_something_else_are_skipped(own: Path, card, compared, skipped, told) -> None:
    """The last ones are. A step may need whole tensors, or all of them; shards know no gradients within a pass."""
    seen(**card)
    found = planned(CPU, DDP, *({"strategy": name, "devices_per_node": 2} for name in compared))
    assert {run.strategy.name for run in found.runs} == {"cpu", "ddp", *compared[: len(compared) - skipped]}
    assert len(reasons(found)) == skipped
    assert all(told in each for each in reasons(found))


def test_norms_that_compute_on_gpus_alone_are_not_for_cpus(own: Path) -> None:
    seen(synced=("norm",))
    assert reasons(planned(CPU)) == ["SyncBatchNorm (norm) computes on GPUs alone, device is cpu; use BatchNorm there"]
