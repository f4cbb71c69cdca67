"""A task of one's own in a plan: its file, its options, its card, and what is frozen of it."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plans import CPU, DDP, ROOT, plan
from relay.base.errors import UserError
from relay.card.looks import Looks
from relay.config.config import Config, load
from relay.planning.plan import Plan
from relay.run_folder.snapshot import freeze
from relay.spec.arithmetic import Arithmetic
from relay.spec.tasks import NO_GPU, Looked
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


def asked(*comparisons: dict[str, Any], **keys: Any) -> Config:
    return load({"repeats": 1, "comparisons": list(comparisons), **keys})


def planned(config: Config, **how: Any) -> Plan:
    return plan(config, gpus=0, cpus=64, results=Path("results"), **how)


def seen(config: Config, **changes: Any) -> Looked:
    """A card of the config's task where the driver keeps it, as if it had looked; `changes` are the card's."""
    looks = Looks(config=config, root=ROOT, results=Path("results"), arithmetic=Arithmetic.here())
    known = shipped("linear-random10")
    made = replace(known, task=replace(known.task, name="my-task", card=replace(known.task.card, **changes)))
    made.write(looks.place({}))
    return made


def reasons(config: Config) -> list[str]:
    return [reason for skipped in planned(config).skipped for reason in skipped.reasons]


def test_a_declared_file_changes_the_run_and_is_frozen_with_it(own: Path) -> None:
    (own / "my_task.py").write_text(TASK + '    files = ("labels.json", "more/rates.bin", "gone.json", "../up.json")\n')
    (own / "more").mkdir()
    (own / "more/rates.bin").write_bytes(b"\xff")
    (own / "labels.json").write_text("[1]")
    config = asked(CPU, task="my_task.py")
    seen(config)
    (before,) = planned(config).runs
    frozen = freeze(None, before.task.file, folder=own / "code") / "relay/own_task"
    found = sorted(str(path.relative_to(frozen)) for path in frozen.rglob("*") if path.is_file())
    assert found == ["helper.py", "labels.json", "more/rates.bin", "my_task.py"]  # what is wrong is told by the look
    assert "files" not in before.task.options
    (own / "labels.json").write_text("[2]")
    seen(config)
    assert planned(config).runs[0].id != before.id


def test_a_model_on_a_gpu_is_refused_with_what_helps_where_no_job_has_one(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "error: my_task.py:6: AssertionError: Torch not compiled with CUDA enabled\n"
    ended = subprocess.CompletedProcess([], NO_GPU, stderr=said)
    monkeypatch.setattr("relay.card.looks.subprocess.run", lambda *_, **__: ended)
    looks = Looks(
        config=asked(CPU, task="my_task.py"),
        root=ROOT,
        results=Path("results"),
        arithmetic=Arithmetic.here(),
        look=True,
    )
    with pytest.raises(UserError, match=r"CUDA enabled; no GPU is here: leave out \.cuda"):
        looks.looked({})


def test_random_samples_are_read_one_by_one(own: Path) -> None:
    config = asked(CPU | {"loader": [None, "resident"]}, task="my_task.py")
    seen(config, random_samples=True)
    found = planned(config)
    assert [run.feeding.loader for run in found.runs] == ["dataloader"]
    (told,) = reasons(config)
    assert told.endswith("those of my-task differ from epoch to epoch; use loader dataloader")
    seen(config, random_samples=None, equal_shapes=None)  # nothing is refused for what is not known
    assert not reasons(config)


def test_a_loss_that_is_no_mean_is_measured_only_where_that_is_asked_for(own: Path) -> None:
    config = asked(CPU, DDP, task="my_task.py")
    seen(config, mean_difference=0.02)
    assert reasons(config) == 2 * [  # cpu divides no batch, but its gate has the same reference, which proves nothing
        "the loss of my-task is no mean over samples, so that a divided batch is another training; `unproven: measure` "
        "has it measured all the same"
    ]
    measured = planned(asked(CPU, DDP, task="my_task.py", unproven="measure"))
    assert {run.strategy.name for run in measured.runs} == {"cpu", "ddp"}
    assert not measured.spot_checks


def test_stages_are_refused_where_the_optimizer_groups_by_place(own: Path) -> None:
    config = asked(CPU, DDP, {"strategy": "pipeline", "devices_per_node": 2}, task="my_task.py")
    places = ("first", "second")
    seen(config, grouped_by_place=True, cuts=places, uncuttable=None)
    assert {run.strategy.name for run in planned(config).runs} == {"cpu", "ddp"}
    told = "pipeline calls optimizer() with each stage's parameters, and that of my-task groups them by their place in"
    assert reasons(config)[0].startswith(told)
    seen(config, cuts=places, uncuttable=None)
    assert not reasons(config)


def test_strategies_are_skipped_whose_processes_have_less_than_a_step_reads(own: Path) -> None:
    parts = [{"strategy": name, "devices_per_node": 2} for name in ("pipeline", "zero1")]
    config = asked(CPU, DDP, *parts, task="my_task.py")
    for scope, left in (("tensor", {"pipeline"}), ("model", set())):
        seen(config, optimizer_scope=scope, cuts=("first", "second"), uncuttable=None)
        assert {run.strategy.name for run in planned(config).runs} == {"cpu", "ddp", *left}
        assert all("a step of my-task's optimiser reads " in each for each in reasons(config))


def test_gradients_within_a_forward_pass_are_not_for_shards(own: Path) -> None:
    divided = [{"strategy": name, "devices_per_node": 2} for name in ("fsdp", "tensor_parallel")]
    config = asked(DDP, *divided, task="my_task.py")
    seen(config, differentiates=True, matrices=1.0)
    assert [run.strategy.name for run in planned(config).runs] == ["ddp"]
    assert len(reasons(config)) == 2
    assert all(each.endswith("cannot compute the gradients of those; use ddp") for each in reasons(config))


def test_norms_that_compute_on_gpus_alone_are_not_for_cpus(own: Path) -> None:
    config = asked(CPU, task="my_task.py")
    seen(config, synced=("norm",))
    assert reasons(config) == ["SyncBatchNorm (norm) computes on GPUs alone, device is cpu; use BatchNorm there"]
