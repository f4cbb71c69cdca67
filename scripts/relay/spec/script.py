"""A command of the user's that is measured as it stands: its words, its files, and what is read of its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from relay.base.errors import UserError

# What a speed counts: samples, steps where nobody says how many samples a step has, or whole runs of the command.
Counted = Literal["samples", "steps", "runs"]
# Placeholders that a job fills in. All others are filled in by the planner.
OF_A_JOB = ("seed", "repeat", "node", "address", "port")
NOT_PROVEN = "script"  # the id of the verdict that all scripts share
STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")


@dataclass(frozen=True, kw_only=True)
class Script:
    """A command, measured as it stands.

    `command` are its words, with the placeholders of a job. `file` is the script among them, as the config writes it;
    '' where there is none. `files` are all that is frozen with a run: the script, the modules beside it that it
    imports, and the files that the command names. `links` are what a run's folder links to, by the links' names.
    `read` are the patterns for its output, by what they find: `samples_per_second`, `step`, `loss`, `accuracy`.
    `reported`: the script itself reports its steps, by `relay.chain`. `source` is a digest of the files.
    """

    command: tuple[str, ...]
    file: str = ""
    files: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    counts: Counted = "runs"
    reported: bool = False
    source: str = ""

    @property
    def chained(self) -> bool:
        """Whether its jobs can go on from each other's checkpoints."""
        return self.reported

    def frozen_name(self, file: str) -> str:
        """Where one of `files` lies in a run's snapshot: as seen from the script's folder, or by its name alone."""
        folder = Path(self.file).absolute().parent
        path = Path(file).absolute()
        return str(path.relative_to(folder)) if self.file and path.is_relative_to(folder) else path.name

    def identity(self) -> dict[str, Any]:
        """What of it changes the result: where its files lie does not."""
        return {"command": self.command, "read": self.read, "links": sorted(self.links)}


def placeholders(words: Sequence[str]) -> list[str]:
    """The names in braces, each once. Raises UserError for a brace that begins none."""
    return list(dict.fromkeys(name for word in words for _, name in _parts(word) if name is not None))


def filled(word: str, values: Mapping[str, Any], *, last: bool = False) -> str:
    """A word with the values of its placeholders. One without a value stays, and so do `{{` and `}}`, but for the last
    time.
    """
    made = []
    for text, name in _parts(word):
        made.append(text if last else text.replace("{", "{{").replace("}", "}}"))
        if name is not None:
            made.append(str(values[name]) if name in values else f"{{{name}}}")
    return "".join(made)


def _parts(word: str) -> Iterator[tuple[str, str | None]]:
    try:
        for text, name, form, conversion in Formatter().parse(word):
            if name is not None and (form or conversion or not name.isidentifier()):
                raise ValueError("a placeholder is a name in braces")
            yield text, name
    except ValueError as error:
        raise UserError(f"'{word}' is not allowed ({error}); allowed: {{name}}, and {{{{ for a brace") from None


def started_by_torchrun(words: Sequence[str]) -> int | None:
    """Where the options of torchrun begin in a command; None where it does not start by torchrun."""
    for place, word in enumerate(words[:3]):
        if word.rpartition("/")[2] in STARTERS and (place == 0 or words[place - 1] == "-m"):
            return place + 1
    return None
