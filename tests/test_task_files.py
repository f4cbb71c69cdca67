"""From a task's file to its class: options with their types, and mistakes in one line with file and line."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from refusals import refusal
from relay.spec.tasks import TaskSpec
from relay.task.load import task_class, task_of
from relay.task.user import options_of

WHOLE = """\
import relay


class Helper(relay.Task):
    width = 16
    rate, name, deep = 0.5, "a", False
    learning_rate = 0.1
    _hidden = 3
    sizes = [1, 2]

    def model(self):
        return self.width


class Task(Helper):
    width = 32
"""


ONE = "{file}: one class must derive from relay.Task; found: "


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Files of other tests have the same names."""
    known, path = {*sys.modules}, [*sys.path]
    yield
    for name in {*sys.modules} - known:
        del sys.modules[name]
    sys.path[:] = path


def spec(folder: Path, text: str, **options: object) -> TaskSpec:
    file = folder / "mine.py"
    file.write_text(text)
    return TaskSpec(name="mine", file=str(file), options=options, global_batch_size=8, learning_rate=0.3)


def test_plain_values_of_the_class_are_its_options(tmp_path: Path) -> None:
    """Its own value wins over the one that it inherits; what describes a task, or is no plain value, is none."""
    found = options_of(task_class(spec(tmp_path, WHOLE)))
    assert found == {"width": 32, "rate": 0.5, "name": "a", "deep": False}
    assert [type(value) for value in found.values()] == [int, float, str, bool]


def test_a_task_has_the_options_and_the_rate_of_its_specification(tmp_path: Path) -> None:
    made = task_of(spec(tmp_path, WHOLE, width=8))
    assert made.model() == 8
    assert (made.learning_rate, made.global_batch_size) == (0.3, 8)
    assert options_of(made)["width"] == 8
    assert options_of(type(made))["width"] == 32


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_mine.py").write_text("WIDTH = 5\n")
    text = "import relay\nfrom beside_mine import WIDTH\n\n\nclass Task(relay.Task):\n    width = WIDTH\n"
    assert options_of(task_class(spec(tmp_path, text))) == {"width": 5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import relay\nclass Task(relay.Task:\n", "{file}:2: no valid Python: "),
        ("import relay\nimport no_such_package\n", "{file}:2: No module named 'no_such_package'; allowed: packages"),
        (
            "from .helper import x\n",
            "{file}:1: attempted relative import with no known parent package; allowed: the name",
        ),
        ("import relay\n", f"{ONE}none; a script is measured as a `command`"),
        ("import relay\nclass A(relay.Task): ...\nclass B(relay.Task): ...\n", f"{ONE}A and B"),
    ],
    ids=["syntax", "import", "relative import", "empty", "two"],
)
def test_a_file_that_is_no_task_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    its = spec(tmp_path, text)
    assert refusal(task_class, its).startswith(said.format(file=its.file))
