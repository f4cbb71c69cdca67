"""A command of the user's that is measured as it stands: its words, its files, and what is read of its output."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from relay.base.errors import UserError

# What a speed counts: samples, steps where nobody says how many samples a step has, or whole runs of the command.
Counted = Literal["samples", "steps", "runs"]
# Placeholders that a job fills in. All others are filled in by the planner.
OF_A_JOB = ("seed", "repeat", "node", "address", "port")
TASK = "script"  # the name of what commands train that are alternatives: nobody knows it
NOT_PROVEN = "script"  # the id of the verdict that all scripts share
# Options of torchrun that say where processes meet.
MEETING = ("--standalone", "--rdzv-backend", "--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank")
STARTERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
# What `{number}` in a pattern stands for. Commas are between thousands: of a decimal comma, nothing is read. Others
# write 1_000, 1'000, or a blank at which no line breaks.
SEPARATOR = "[,_'\u00a0\u202f]"
_DIGITS = rf"(?:[1-9]\d{{0,2}}(?:{SEPARATOR}\d{{3}})+|\d+)"
NUMBER = rf"(?<![\d.,])([-+]?(?:{_DIGITS}\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)\b)(?!\d|,\d)"


@dataclass(frozen=True, kw_only=True)
class Script:
    """A command, measured as it stands.

    `command` are its words, with the placeholders of a job. `file` is the script among them, as the config writes it;
    '' where there is none. `files` are all that is frozen with a run: the script, the modules that it imports from
    `folder` on, and the files that the command names. `links` are what a run's folder links to, by the links' paths
    as seen from where the command runs.
    `read` are the patterns for its output, by what they find: `samples_per_second`, `step`, `loss`, `accuracy`.
    `reported`: the script itself reports its steps, by `relay.chain`. `chained`: it keeps checkpoints by that, so that
    its jobs can go on from each other. `source` is a digest of the files.
    """

    command: tuple[str, ...]
    file: str = ""
    folder: str = ""
    files: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    counts: Counted = "runs"
    reported: bool = False
    chained: bool = False
    source: str = ""

    @property
    def root(self) -> Path:
        """The folder that a run's folder mirrors: this one, or one above it, which has all that is named from here."""
        named = [name for name in (*self.files, *self.links) if not Path(name).is_absolute()]
        return Path(os.path.commonpath([Path.cwd(), *(_whole(name).parent for name in named)]))

    @property
    def within(self) -> Path:
        """Where in a run's folder the command runs."""
        return Path.cwd().relative_to(self.root)

    def frozen_name(self, file: str) -> str:
        """Where one of `files` lies in a run's folder, and in its snapshot: as it lies below `root`.

        A file elsewhere has a folder of its own there, for several may have one name. What lies in the script's folder
        stays beside the script.
        """
        path, folder = _whole(file), _whole(self.folder)
        if path.is_relative_to(self.root):
            return str(path.relative_to(self.root))
        near = folder if path.is_relative_to(folder) else path.parent
        return f"from-{sha256(str(near).encode()).hexdigest()[:8]}/{path.relative_to(near)}"

    def identity(self) -> dict[str, Any]:
        """What of it changes the result: where its own files lie does not."""
        return {"command": self.command, "read": self.read, "links": self.links}


def _whole(path: str) -> Path:
    """A path from the root on, without `..`; links are not followed."""
    return Path(os.path.normpath(Path(path).absolute()))


def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the config, in which `{number}` stands for any number. Raises re.error."""
    return re.compile(pattern.replace("{number}", NUMBER))


def placeholders(words: Sequence[str]) -> list[str]:
    """The names in braces, each once. Raises UserError for a brace that begins none."""
    return list(dict.fromkeys(name for word in words for _, name in _parts(word) if name is not None))


def filled(word: str, values: Mapping[str, Any], *, last: bool = False) -> str:
    """A word with the values of its placeholders. One without a value stays, and so do `{{` and `}}`, but for the last
    time.
    """

    def text(value: object) -> str:
        plain = str(value).lower() if isinstance(value, bool) else str(value)  # as the config writes it
        return plain if last else plain.replace("{", "{{").replace("}", "}}")

    parts = []
    for plain, name in _parts(word):
        parts.append(text(plain))
        if name is not None:
            parts.append(text(values[name]) if name in values else f"{{{name}}}")
    return "".join(parts)


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


def options_given(words: Sequence[str], begin: int) -> dict[str, str]:
    """The options of torchrun that a command gives, as torchrun spells them, with their values ('' without one)."""
    options: dict[str, str] = {}
    rest = list(words[begin:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        name, equals, value = rest.pop(0).partition("=")
        if not equals and rest and not rest[0].startswith("-") and name not in ("--standalone", "--no-python"):
            value = rest.pop(0)
        options[name.replace("_", "-")] = value
    return options


def file_argument(word: str) -> tuple[str, str]:
    """What a word may name as a file or folder: the part before it, such as `--config=`, and the path; '' for none."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return (f"{option}{equals}", value) if "/" in value or "." in value else (word, "")
