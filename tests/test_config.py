"""The config: mistakes get one line that helps, its written forms agree with the code, and all sets can be planned."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from plans import ROOT, plan
from relay.base.errors import UserError
from relay.config import shrink
from relay.config.comparisons import Comparison
from relay.config.config import Config, load
from relay.planning.plan import Plan
from relay.spec.tasks import built_in
from relay.spec.yaml_file import Strict
from slurm_runs import site_in

pytestmark = pytest.mark.usefixtures("in_the_project")


def refusal(given: dict[str, Any], read: Callable[[Any], object] = load) -> list[str]:
    """The lines with which a config is refused."""
    with pytest.raises(UserError) as caught:
        read(given)
    return str(caught.value).splitlines()


def written() -> dict[str, object]:
    return yaml.safe_load((ROOT / "config/config.yaml").read_text())


def test_the_written_defaults_are_the_defaults() -> None:
    assert load(written()) == Config()
    assert list(written()) == list(Config.model_fields)  # every key, in the model's order


MISTAKES = yaml.safe_load(Path(__file__).with_name("config_mistakes.yaml").read_text())


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["given"])
def test_a_mistake_has_one_line(mistake: dict[str, str]) -> None:
    told = mistake["told"].replace("TASKS", ", ".join(built_in()))
    assert refusal(yaml.load(mistake["given"], Loader=Strict)) == [told]


@pytest.mark.parametrize("key", list(Config.model_fields))
def test_every_key_refuses_nonsense_by_its_name(key: str) -> None:
    of_yaml = {False: "sense"}  # {no: sense}
    (line,) = refusal({key: "nonsense" if key in ("gate", "packages", "task_options") else of_yaml})
    assert line.startswith(f"config: {key}")
    assert "; allowed: " in line or "? allowed: " in line


@pytest.mark.parametrize("key", list(Comparison.model_fields))
def test_every_key_of_a_comparison_refuses_nonsense_by_its_name(key: str) -> None:
    nonsense = 3 if key in ("options", "task_options", "segment", "read", "links") else {"no": "sense"}
    (line,) = refusal({"comparisons": [{"strategy": "cpu"}, {"strategy": "cpu", key: nonsense}]})
    assert line.startswith(f"config: comparisons[1].{key}: ")
    assert "; allowed: " in line


def test_all_mistakes_are_told_at_once() -> None:
    lines = refusal({"epochs": 0, "repeats": "x", "gate": {"seed": -1}})
    assert [line.split(": ")[1] for line in lines] == ["epochs", "repeats", "gate.seed"]


@pytest.mark.slow
def test_schema_defaults_and_documentation_are_in_step_with_the_code() -> None:
    """`make schema` would change none of the three files."""
    command = [sys.executable, str(ROOT / "scripts/schema.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# A comparison shrunk to a laptop: what changes, and what stays as it is


def shrunk(*comparisons: dict[str, Any], **keys: Any) -> Config:
    return shrink.applied(load({"shrink": True, "comparisons": list(comparisons), **keys}))


def test_it_is_short_and_on_cpus() -> None:
    config = shrunk({"strategy": "cpu", "repeats": 9}, epochs=30, repeats=7, device="cuda")
    assert (config.device, config.epochs, config.repeats, config.gate.steps) == ("cpu", 1, 2, 40)
    assert config.comparisons[0].repeats == 2
    assert shrunk({"strategy": "cpu"}, epochs=0.5, repeats=1).repeats == 1


def test_nodes_become_processes_of_one_machine() -> None:
    one = {"strategy": "ddp", "nodes": [1, 2, 3], "devices_per_node": 2, "cpus_per_task": [1, 2, 8]}
    (comparison,) = shrunk(one).comparisons
    assert comparison.nodes == [1]
    assert comparison.devices_per_node == [2, 4]
    assert comparison.cpus_per_task == [1, 2]
    assert comparison.data_workers == [None]


def test_a_strategy_for_gpus_becomes_the_one_that_stands_for_it() -> None:
    pipelined = {"strategy": "model_parallel_in_process", "devices_per_node": 2, "options": {"micro_batches": 4}}
    config = shrunk({"strategy": "cpu"}, {"strategy": "single_gpu"}, {"strategy": "data_parallel"}, pipelined)
    assert [each.strategy for each in config.comparisons] == ["cpu", "ddp", "model_parallel"]
    assert config.comparisons[2].options == {}  # model_parallel has none


def test_what_a_config_says_for_itself_comes_first() -> None:
    own = {"task": "lenet-synthetic", "epochs": 3, "task_options": {"train_count": 640}}
    config = shrunk({"strategy": "cpu"}, task="lenet-cifar10", epochs=30, task_options={"classes": 5}, shrunk=own)
    assert (config.task, config.epochs) == ("lenet-synthetic", 3)
    assert config.task_options == {"train_count": [640], "classes": [5]}


def test_a_mistake_in_it_is_one_line_whether_it_is_used_or_not() -> None:
    (line,) = refusal({"shrink": False, "shrunk": {"epochs": "few"}}, lambda given: shrink.applied(load(given)))
    assert line.startswith("config: shrunk.epochs: 'few' is not allowed; allowed: a number")
    (line,) = refusal({"shrunk": {"shrunk": {"epochs": 1}}}, lambda given: shrink.applied(load(given)))
    assert line == "config: shrunk.shrunk: is not allowed there; allowed: keys that shrinking replaces"


# The ready experiment sets: each is planned whole for a site with GPUs, and shrunk for a laptop


SETS = {path.stem: path for path in sorted((ROOT / "config" / "sets").glob("*.yaml"))}
# Why a setting of a shrunk set may be left out: what a laptop cannot have.
NOT_HERE = ("launcher srun needs a cluster profile", "is a mode of GPUs, device is cpu", "this machine has no libaio.h")
EXPECTED = ("this machine has 2 CPUs", "runs once")
STEPS = 1100  # of a shrunk run
# Their shrunk tasks have no shipped card.
LOOKED_AT = ("batch-and-workers", "mps-replicas", "resnet18", "tf32")


def config_of(name: str, **more: Any) -> Config:
    return shrink.applied(load(yaml.safe_load(SETS[name].read_text()) | more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    """Every set on a cluster with GPUs."""
    partitions = [
        {"name": "gpus", "device": "cuda", "gpus_per_node": 4, "cpus_per_node": 48, "max_nodes": 4, "max_minutes": 600},
        {"name": "cpus", "device": "cpu", "cpus_per_node": 48, "max_nodes": 4, "max_minutes": 600},
    ]
    site = site_in(tmp_path_factory.mktemp("site"), partitions=partitions)
    return {name: plan(config_of(name), site=site, root=ROOT, results=Path("none")) for name in SETS}


@pytest.mark.parametrize("name", SETS)
def test_nothing_of_it_is_skipped_on_a_cluster_with_gpus(name: str, whole: dict[str, Plan]) -> None:
    plan = whole[name]
    assert [(skipped.setting.strategy.name, skipped.reasons) for skipped in plan.skipped] == []
    # The documents' own shapes: two GPUs of each node.
    assert [warning for warning in plan.warnings if "fill a node first" not in warning] == []
    assert {run.repeat for run in plan.runs} == {0, 1, 2}


@pytest.mark.parametrize("name", [name for name in SETS if name not in LOOKED_AT])
def test_shrunk_it_runs_on_two_cores_without_a_gpu_and_a_download(name: str, tmp_path: Path) -> None:
    config = config_of(name, shrink=True)
    made = plan(config, gpus=0, cpus=2, root=ROOT, results=tmp_path)
    left_out = [reason for skipped in made.skipped for reason in skipped.reasons]
    assert [reason for reason in left_out if not any(known in reason for known in NOT_HERE)] == []
    assert shrink.WARNING in made.warnings
    others = [warning for warning in made.warnings if warning != shrink.WARNING]
    assert [warning for warning in others if not any(known in warning for known in EXPECTED)] == []
    assert len(made.settings) >= 2
    for run in made.runs:
        assert (run.shape.device, run.shape.nodes) == ("cpu", 1)
        assert run.dataset.name in ("synthetic", "digits", "relay-text")
        assert run.shape.world_size <= 4
        assert run.length.warmup_steps < run.length.total_steps <= STEPS
