"""A task's data are made anew when `prepare`, or any of the user's code that it calls, has changed."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

from relay.spec.tasks import TaskSpec
from relay.task.load import task_of
from relay.task.prepared import version_of

FILE = '''
import relay
from shapes import circle

SIZE = 8


def draw(count):
    """Rows."""
    return [circle(SIZE) for _ in range(count)]


class Task(relay.Task):
    count = 3
    width = 4

    def prepare(self, folder):
        (folder / "rows").write_text(str([*draw(self.count), *self.more()]))

    def more(self):
        return Kept().rows


class Kept:
    rows = [1]
'''
BESIDE = """
def circle(size):
    return size * 3
"""


def version(folder: Path, text: str = FILE, beside: str = BESIDE) -> str:
    """That of a task whose file has this text, beside a module with that one."""
    folder.mkdir()
    (folder / "rows.py").write_text(text)
    (folder / "shapes.py").write_text(beside)
    spec = TaskSpec(name="rows", file=str(folder / "rows.py"), global_batch_size=1, learning_rate=1.0)
    with mock.patch.dict(sys.modules), mock.patch.object(sys, "path", [*sys.path]):
        return version_of(task_of(spec))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SIZE = 8", "SIZE = 9"),
        ("rows = [1]", "rows = [2]"),
        ("size * 3", "size * 4"),
        ("count = 3", "count = 5"),
    ],
)
def test_whatever_prepare_reaches_makes_other_data(tmp_path: Path, old: str, new: str) -> None:
    before = version(tmp_path / "a")
    assert version(tmp_path / "b", FILE.replace(old, new), BESIDE.replace(old, new)) != before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Rows."""', '"""Others."""  # a comment'),
        ("width = 4", "width = 5"),
    ],
)
def test_whatever_it_does_not_reach_leaves_them(tmp_path: Path, old: str, new: str) -> None:
    before = version(tmp_path / "a")
    assert version(tmp_path / "b", FILE.replace(old, new), BESIDE.replace(old, new)) == before
