"""The fenced blocks of the documentation: commands, what they print, and files."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    "README.md",
    *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
    *(f"{folder}/README.md" for folder in ("config", "config/sites", "results", "benchmarks")),
]
# The first words of commands. A block whose first word is none of them shows what is printed.
SHELL = ("export", "source", "unset")
PROGRAMS = ("snakemake", "python", "make", "pip", "apt-get", "scontrol", "cmake", "relay", "relay-chain")
PROGRAMS += ("build/relay_libtorch",)
PROGRAMS += ("RELAY/.venv/bin/snakemake", *SHELL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `line` is that of its first fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_command(self) -> bool:
        return not self.language and self.text.split()[0] in PROGRAMS

    @property
    def commands(self) -> list[list[str]]:
        """The words of each command, without comments."""
        split = (shlex.split(part, comments=True) for line in self.lines for part in line.split("&&"))
        return [words for words in split if words] if self.is_command else []

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    """The blocks of a page, in its order."""
    text = (ROOT / page).read_text()
    found = re.finditer(r"(?ms)^```(\w*)\n(.*?)^```$", text)
    return [Block(page, text[: match.start()].count("\n") + 1, match[1], match[2]) for match in found]


def all_blocks() -> Iterator[Block]:
    for page in PAGES:
        yield from blocks(page)


def block(page: str, *beginning: str) -> Block:
    """The block of the page with a line that begins with these words."""
    pattern = re.compile(r"(?m)^" + r" +".join(map(re.escape, beginning)))
    (found,) = [each for each in blocks(page) if pattern.search(each.text)]
    return found


def masked(text: str) -> list[str]:
    """The lines of a text without numbers, times, ids and the widths of columns."""
    text = re.sub(r"-[0-9a-f]{12}\b", "-ID", text)
    text = re.sub(r"\d[\d,.:]*", "0", text)
    text = re.sub(r"±0 %|×÷0|-0/\+0 %", "±0", text)
    return [re.sub(r"[ ─]+", " ", line).strip() for line in text.splitlines()]


def holds(printed: list[str], shown: list[str]) -> bool:
    """Whether the shown lines are printed, one after the other."""
    return any(printed[start : start + len(shown)] == shown for start in range(len(printed)))
