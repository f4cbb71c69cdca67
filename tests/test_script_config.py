"""A config that names commands: what is planned, and each mistake as one line before anything is queued."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import plans
from plans import planned, reasons
from refusals import refusal
from relay import chain
from relay.base.errors import UserError

TRAIN = "import helper\nprint('img/s: 1')\n"
SPEED, STEP = {"samples_per_second": "(.*) img/s"}, {"step": "step (.*)"}


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TRAIN)
    Path("helper.py").write_text("value = 1\n")
    Path("start.sh").write_text("python train.py\n")
    Path("sub").mkdir()
    return tmp_path


def only(**comparison: Any) -> Any:
    return plans.only({"command": "python train.py", **comparison})


def test_axes_and_options_fill_in_the_command() -> None:
    """Null is a value of an option, too."""
    command = "torchrun --n={processes_per_node} train.py {batch_per_process} {data_workers} {lr} {seed} {{x}}"
    asked = {"command": command, "global_batch_size": 64, "devices_per_node": [1, 2], "options": {"lr": [0.1, None]}}
    words = sorted(run.strategy.script.command for run in planned(asked | {"data_workers": 3}).runs)
    values = [(1, "0.1"), (1, "None"), (2, "0.1"), (2, "None")]
    assert words == [
        ("torchrun", f"--n={count}", "train.py", str(64 // count), "3", lr, "{seed}", "{{x}}") for count, lr in values
    ]


def test_an_option_may_have_the_name_of_what_no_axis_sets() -> None:
    """Many scripts have an option `epochs`; the workflow's own epochs are no axis of a comparison."""
    run = only(command="python train.py {epochs}", options={"epochs": 7})
    assert run.strategy.script.command[-1] == "7"
    for name in ("threads", "seed"):
        with pytest.raises(UserError, match=rf"options\.{name}: is the name of an? \w+ already; give another name"):
            only(command=f"python train.py {{{name}}}", options={name: 7})


def test_the_files_of_a_command_are_its_script_what_that_imports_and_what_the_command_names() -> None:
    Path("settings.json").write_text("{}")
    Path("not_named.json").write_text("{}")
    script = only(command="python train.py --config=settings.json").strategy.script
    assert (script.file, script.files) == ("train.py", ("helper.py", "settings.json", "train.py"))
    for command in ("python -m train", "torchrun -m train", "python -m torch.distributed.run train.py"):
        assert only(command=command).strategy.script.file == "train.py"
    linked = only(command="python train.py ./sub", links={"sub": "sub"}).strategy.script  # it may be named then
    assert linked.files == ("helper.py", "train.py")


def test_a_module_comes_with_its_package_and_files_of_one_name_do_not_meet() -> None:
    for folder in ("pkg", "a", "b"):
        Path(folder).mkdir()
        Path(folder, "c.yaml").write_text(folder)
    Path("pkg/__init__.py").write_text("")
    Path("pkg/model.py").write_text("")
    Path("pkg/train.py").write_text("from pkg.model import *\nfrom . import model\n")
    script = only(command="python -m pkg.train a/c.yaml b/c.yaml").strategy.script
    named = {file: script.frozen_name(file) for file in script.files}
    assert (named, script.within) == (
        {each: each for each in ("a/c.yaml", "b/c.yaml", "pkg/__init__.py", "pkg/model.py", "pkg/train.py")},
        Path(),
    )
    script = only(command="python pkg/train.py ./a/c.yaml").strategy.script
    assert {script.frozen_name(file) for file in script.files} == {*named} - {"b/c.yaml"}


def test_a_runs_folder_mirrors_the_place_of_all_that_is_named(scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of what lies above; a file that is named by its whole path keeps those beside it that it imports."""
    (scripts / "other").mkdir()
    (scripts / "other" / "c.yaml").write_text("")
    monkeypatch.chdir("sub")
    Path("data").mkdir()
    script = only(
        command="python ../train.py --data data ../other/c.yaml", links={"../../x/data": "data"}
    ).strategy.script
    top = scripts.name
    assert script.within == Path(top, "sub")
    assert {*map(script.frozen_name, script.files)} == {
        f"{top}/{name}" for name in ("train.py", "helper.py", "other/c.yaml")
    }
    monkeypatch.chdir("../other")
    script = only(command=f"python {scripts}/train.py").strategy.script
    assert sorted(Path(script.frozen_name(file)).name for file in script.files) == ["helper.py", "train.py"]
    assert len({Path(script.frozen_name(file)).parent for file in script.files}) == 1


def test_whether_a_script_is_a_chain() -> None:
    found = {}
    for text in ("from relay.chain import step", "from relay.chain import resume", "from chain import resume"):
        Path("train.py").write_text(f"{text}\n")
        script = only().strategy.script
        found[text.removeprefix("from ")] = (script.reported, script.chained)
    chains = {"relay.chain import step": (True, False), "relay.chain import resume": (True, True)}
    assert found == chains | {"chain import resume": (False, False)}
    shutil.copytree(Path(chain.__file__).parent, "chain")  # as a user's copy beside the script
    assert only().strategy.script.reported


def test_another_command_script_import_or_data_set_is_another_run() -> None:
    ids = [only(**given).id for given in ({}, {"command": "python train.py --more"}, {"read": {"loss": "loss (.*)"}})]
    ids += [only(links={"data": name}).id for name in ("sub", "train.py")]
    assert only().id == ids[0]
    for name in ("train.py", "helper.py"):
        Path(name).write_text(Path(name).read_text() + "more = 1\n")
        ids.append(only().id)
    assert len({*ids}) == len(ids) == 7


@pytest.mark.parametrize(
    ("comparison", "told"),
    [
        ({"command": "python nowhere.py"}, "comparisons[0].command: nowhere.py: no such file"),
        ({"command": "python train.py $HOME"}, "'$HOME' is for a shell"),
        ({"command": "python train.py ./sub"}, "./sub is a folder here, and the command runs in a folder of its own"),
        ({"command": "srun python train.py"}, "leave it out, and give `launcher: srun`"),
        ({"command": "python train.py {data_worker}"}, "{data_worker} is unknown; did you mean 'data_workers'?"),
        ({"precision": "bf16"}, "precision: changes nothing: the command has no {precision}; write it there"),
        ({"strategy": "ddp"}, "gives a strategy and a command"),
        ({"read": {"step": "step (.*)"}}, "read.step: needs the samples of a step; give global_batch_size"),
        ({"answer": {"epochs": 90}}, "answer.epochs: 90.0 is not allowed beside a command, which is measured as it "),
        ({"epochs": 3}, "config: epochs: 3.0 is not allowed beside a command, which is measured as it stands; leave"),
        ({"task": "gpt-tiny"}, "config: task: 'gpt-tiny' is not allowed beside a command, which is measured as it "),
    ],
)
def test_a_mistake_is_one_line(comparison: dict[str, Any], told: str) -> None:
    keys = {name: value for name, value in comparison.items() if name in ("answer", "epochs", "task")}
    of_command = {name: value for name, value in comparison.items() if name not in keys}
    assert told in refusal(planned, {"command": "python train.py", **of_command}, **keys)


def test_horovods_processes_are_not_started_where_each_would_train_alone() -> None:
    """Each took itself for rank 0 of 1, and the run counted as done."""
    asked = {"command": "python train.py", "stack": "horovod", "devices_per_node": 2}
    assert "write horovodrun -np {world_size} into the command" in reasons(asked | {"launcher": "direct"})[0]
    assert len(planned(asked | {"command": "horovodrun -np {world_size} python train.py"}).runs) == 1


def test_programs_without_a_common_measure_have_an_answer_each() -> None:
    eight, four = ({"read": STEP, "global_batch_size": size} for size in (8, 4))
    for first, second, trained in (
        ({}, {"name": "train"}, {"script"}),
        ({"read": SPEED}, {"read": SPEED}, {"script"}),
        (eight, eight, {"script"}),
        (eight, four, {"b", "train"}),
    ):
        command = {"command": "python train.py"}
        assert {run.task.name for run in planned(command | first, command | {"name": "b"} | second).runs} == trained
