"""A task of one's own in a plan: its file, its options, its card, and what is frozen of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from plans import CPU, DDP, ROOT
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.planning import table
from relay.planning.cards import Looks, NotKnown
from relay.planning.config import Config, load
from relay.planning.plan import Plan
from relay.planning.planner import plan
from relay.run_folder.snapshot import freeze
from relay.spec.arithmetic import Arithmetic
from relay.spec.looked import Looked
from relay.spec.site import Site, load_site
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
    return plan(config, gpus=0, cpus=64, speeds=Path("results/speeds.json"), **how)


def seen(config: Config, **changes: Any) -> Looked:
    """A card of the config's task where the driver keeps it, as if it had looked; `changes` are the card's."""
    looks = Looks(config=config, root=ROOT, results=Path("results"), arithmetic=Arithmetic.here())
    known = shipped("linear-random10")
    made = replace(known, task=replace(known.task, name="my-task", card=replace(known.task.card, **changes)))
    made.write(looks.place({}))
    return made


def reasons(config: Config) -> list[str]:
    return [reason for skipped in planned(config).skipped for reason in skipped.reasons]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"norms": "group"}, "config: task_options.norms: 'group' is not allowed, resnet18-cifar10 has no such option; "
         "did you mean 'norm'? allowed: channels, classes, norm, side, width"),
        ({"width": "64"}, "config: task_options.width: '64' is not allowed; allowed: a whole number of at least 1, "
         "such as 64"),
    ],
)  # fmt: skip
def test_an_option_that_a_task_does_not_have_is_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        planned(asked(CPU, task="resnet18-cifar10", task_options=options))
    assert str(caught.value) == line


def test_a_file_that_is_not_there_is_one_line(own: Path) -> None:
    with pytest.raises(UserError, match=rf"config: task: 'mine\.py': there is no such file; paths begin at {own}"):
        planned(asked(CPU, task="mine.py"))


@pytest.mark.slow
def test_the_data_are_prepared_before_the_task_is_looked_at(own: Path) -> None:
    config = asked(CPU, task="my_task.py", task_options={"train_count": [64, 128]}, epochs=8)
    with pytest.raises(NotKnown, match="`snakemake data` prepares them"):
        planned(config, look=True)
    found = planned(config, prepare=True)
    assert {run.dataset.train_count for run in found.runs} == {64, 128}
    assert {run.task.file for run in found.runs} == {"my_task.py"}
    assert {
        (own / "results/datasets" / run.dataset.directory_name / "manifest.json").is_file() for run in found.runs
    } == {True}
    assert [run.id for run in planned(config).runs] == [
        run.id for run in found.runs
    ]  # as jobs plan, which look at nothing


@pytest.mark.slow
def test_a_module_beside_the_file_changes_the_run_and_is_frozen_with_it(own: Path) -> None:
    config = asked(CPU, task="my_task.py")
    seen(config)
    (before,) = planned(config).runs
    frozen = freeze(None, before.task.file, folder=own / "code")
    assert sorted(path.name for path in (frozen / "relay/own_task").glob("*.*")) == ["helper.py", "my_task.py"]
    (own / "helper.py").write_text("FEATURES = 12\n")
    seen(config)
    (after,) = planned(config).runs
    assert after.id != before.id
    assert freeze(None, after.task.file, folder=own / "code") != frozen
    (own / "unused.py").write_text("")
    assert planned(config).runs[0].id == after.id


def test_a_call_after_an_edit_says_that_its_runs_are_new(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = asked(CPU, task="my_task.py")
    seen(config)
    write_json(own / "results" / "plan.json", planned(config).to_json())
    planned(config).prepare()
    assert "changed since the last call" not in capsys.readouterr().err
    (own / "helper.py").write_text("FEATURES = 12\n")
    seen(config)
    planned(config).prepare()
    assert "changed since the last call: its 1 runs are new. Earlier results stay in" in capsys.readouterr().err


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


def test_random_samples_are_read_one_by_one(own: Path) -> None:
    config = asked(CPU | {"loader": [None, "resident"]}, task="my_task.py")
    seen(config, random_samples=True)
    found = planned(config)
    assert [run.feeding.loader for run in found.runs] == ["dataloader"]
    assert reasons(config) == [
        "loader resident keeps samples as they are, those of my-task differ from epoch to epoch; use loader dataloader"
    ]
    seen(config, random_samples=None, equal_shapes=None)  # nothing is refused for what is not known
    assert not reasons(config)


def test_synchronised_norms_are_skipped_on_cpus(own: Path) -> None:
    config = asked(CPU, DDP, task="my_task.py")
    seen(config, synced=("1",))
    assert reasons(config) == 2 * ["SyncBatchNorm (1) computes on GPUs alone, device is cpu; use BatchNorm there"]


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
    staged = [
        {"strategy": "pipeline", "devices_per_node": 2},
        {"strategy": "model_parallel", "devices_per_node": 2},
        {"strategy": "pipeline_ddp", "devices_per_node": 4},
    ]
    config = asked(CPU, DDP, *staged, task="my_task.py")
    places = ("first", "second")
    seen(config, grouped_by_place=True, cuts=places, uncuttable=None)
    found = planned(config)
    assert {run.strategy.name for run in found.runs} == {"cpu", "ddp"}
    assert [reason.partition(";")[0] for skipped in found.skipped for reason in skipped.reasons] == [
        f"{each['strategy']} calls optimizer() with each stage's parameters, and that of my-task groups them by their "
        "place in the list"
        for each in staged
    ]
    seen(config, cuts=places, uncuttable=None)
    assert not reasons(config)


@pytest.mark.parametrize(
    ("scope", "left"), [("element", {"pipeline", "zero1"}), ("tensor", {"pipeline"}), ("model", set())]
)
def test_strategies_are_skipped_whose_processes_have_less_than_a_step_reads(
    scope: str, left: set[str], own: Path
) -> None:
    parts = [{"strategy": name, "devices_per_node": 2} for name in ("pipeline", "zero1")]
    config = asked(CPU, DDP, *parts, task="my_task.py")
    seen(config, optimizer_scope=scope, cuts=("first", "second"), uncuttable=None)
    found = planned(config)
    assert {run.strategy.name for run in found.runs} == {"cpu", "ddp", *left}
    said = [reason for skipped in found.skipped for reason in skipped.reasons]
    assert all("a step of my-task's optimiser reads " in each for each in said), said


def test_gradients_within_a_forward_pass_are_not_for_shards(own: Path) -> None:
    config = asked(DDP, {"strategy": "fsdp", "devices_per_node": 2}, task="my_task.py")
    seen(config, differentiates=True)
    assert [run.strategy.name for run in planned(config).runs] == ["ddp"]
    (reason,) = reasons(config)
    assert reason.endswith("takes gradients (torch.autograd.grad), which read them later; use ddp")


def test_numbers_that_are_not_torchs_leave_nothing_to_prove(own: Path) -> None:
    seen(asked(CPU, task="my_task.py"), outside=("numpy",))
    assert reasons(asked(CPU, task="my_task.py")) == [
        "the model draws random numbers from numpy, which no other process repeats; `unproven: measure` has it "
        "measured all the same"
    ]
    found = planned(asked(CPU, task="my_task.py", unproven="measure"))
    assert len(found.runs) == 1
    assert not found.spot_checks


NEEDS_GPU = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Task(relay.Task):
    def datasets(self, folder):
        points = torch.arange(256.0).view(64, 4)
        return TensorDataset(points, points), TensorDataset(points, points)

    def model(self):
        return nn.Linear(4, 4).cuda()

    def loss(self, outputs, batch):
        return F.mse_loss(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""


def site_with(device: str) -> Site:
    place = {"name": "all", "device": device, "cpus_per_node": 8, "max_nodes": 2, "max_minutes": 60}
    place |= {"gpus_per_node": 2, "gpu_name": "h100"} if device == "cuda" else {}
    about = {"name": "mine", "description": "a test", "verified": "here", "environment": {"mode": "current"}}
    Path("mine.yaml").write_text(yaml.safe_dump(about | {"partitions": [place]}))
    return load_site("mine.yaml", ROOT)


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="the login node of this test has no GPU")
def test_a_job_looks_at_a_model_that_needs_a_gpu_where_the_cluster_has_some(own: Path) -> None:
    (own / "my_task.py").write_text(NEEDS_GPU)
    config = asked(DDP, task="my_task.py")
    found = planned(config, look=True, site=site_with("cuda"))
    ((name, look),) = found.looks.items()
    job = found.job(look)
    assert job is not None
    assert (look.shape.device, job.gpus_per_node, look.file) == ("cuda", 1, "my_task.py")
    assert not found.runs
    assert not found.skipped  # nothing is refused for what is not known
    assert [*table.unknown(found)]
    # Its job plans the same, without looking.
    assert [*planned(config, site=site_with("cuda")).looks] == [name]
    with pytest.raises(UserError, match=r"my_task\.py:\d+: .*(CUDA|NVIDIA)"):
        planned(config, look=True, site=site_with("cpu"))
    shipped("linear-random10").write(own / f"results/cards/{name}.json")
    assert planned(config, look=True, site=site_with("cuda")).runs
