"""A task's card in words, which are in `workflow/report/card.j2`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from relay.base.entry import ROOT
from relay.spec.labels import counted, several
from relay.spec.tasks import LOOKED_AT, Looked, TaskSpec

TITLES = ("data", "model", "dividing", "training")  # and macros of the template


def in_words(looked: Looked) -> str:
    """The card, a line for each finding; what is not known is said."""
    return _text(looked, _parts(looked))


def all_in_words(cards: Sequence[Looked]) -> Iterator[str]:
    """The cards of several combinations of a task's options; what one has in common with the first is told once."""
    first = _parts(cards[0])
    yield in_words(cards[0])
    for looked in cards[1:]:
        parts = _parts(looked)
        same = [title for title, lines in parts.items() if lines == first[title]]
        differing = {title: lines for title, lines in parts.items() if title not in same}
        new = replace(looked, warnings=tuple(each for each in looked.warnings if each not in cards[0].warnings))
        yield "\n".join([_text(new, differing), *([f"  {', '.join(same)}: as above"] if same else [])])


def _parts(looked: Looked) -> dict[str, list[str]]:
    """The lines below each title."""
    return {title: getattr(_template(), title)(looked.task, looked.dataset).splitlines() for title in TITLES}


@cache
def _template() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # a call that tells no card does without

    folder = FileSystemLoader(ROOT / "workflow" / "report")
    # What is told is text for a terminal.
    environment = Environment(loader=folder, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"bytes": _bytes, "counted": counted, "scaled": _scaled, "several": several}
    environment.globals |= {"looked_at": LOOKED_AT, "infinite": math.inf}
    return environment.get_template("card.j2").module


def _text(looked: Looked, parts: Mapping[str, Sequence[str]]) -> str:
    lines = [_heading(looked.task)]
    for title, findings in parts.items():
        lines += [f"  {title}", *(f"    {line}" for line in findings)]
    return "\n".join([*lines, *(f"  warning: {each}" for each in looked.warnings)])


def _heading(task: TaskSpec) -> str:
    """The task's file, its name where results have another one, and its options."""
    file = Path(task.file)
    name = task.file or task.name
    also = f" (in results and tables: {task.name})" if task.file and file.stem != task.name else ""
    options = ", ".join(f"{name} {value}" for name, value in task.options.items())
    return f"{name}{also}{f', with {options}' if options else ''}"


def _bytes(size: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"


def _scaled(count: int) -> str:
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= unit:
            return f"{count / unit:,.1f} {name}"
    return f"{count}"
