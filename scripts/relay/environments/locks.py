"""Where the lock of a stack is, and what it says. The project's own are in `envs/`. Others the login node records.

A recorded lock is that of a stack with packages of the user's, or of what a site itself offers. Its name is that of the
project's stack and a digest of all that was asked for: `torch-1a2b3c4d5e6f`.
Standard library only: `scripts/bootstrap.py` reads locks before anything is installed.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from relay.base.errors import UserError

RECORDED = Path("results/locks")
# Name and version, as in `torch==2.13.0 \` or `cuda-bindings==13.5.0 ; sys_platform == 'linux'`.
_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)\s*(?:;\s*(.+))?")


@dataclass(frozen=True)
class Pin:
    """A package of a lock in one version. `marker` says for which Pythons and systems; '' for all.

    `hashes` are those of the files that may be installed, such as `sha256:…`.
    """

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()

    def requirement(self, operator: str = "==", label: str = "") -> str:
        """The package as pip is asked for it, without its hashes."""
        return f"{self.name}{operator}{self.version}{label}" + (f" ; {self.marker}" if self.marker else "")

    def lines(self, operator: str = "==", label: str = "") -> str:
        """The package as it stands in a lock: its version, and below it each hash."""
        hashes = [f"--hash={digest}" for digest in self.hashes]
        return " \\\n    ".join([self.requirement(operator, label), *hashes]) + "\n"


def pins(text: str) -> list[Pin]:
    """The packages of a lock's text. Raises ValueError for a line that is no version, hash or comment."""
    hashes_by_match: list[tuple[re.Match[str], list[str]]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.removesuffix("\\").strip()
        if line.startswith("--hash=") and hashes_by_match:
            hashes_by_match[-1][1].append(line.removeprefix("--hash="))
        elif match := _PINNED.fullmatch(line):
            hashes_by_match.append((match, []))
        elif line and not line.startswith("#"):
            raise ValueError(f"line {number} is neither name==version nor a hash: {line!r}")
    return [Pin(match[1], match[2], match[3] or "", tuple(hashes)) for match, hashes in hashes_by_match]


def read(lock: Path) -> list[Pin]:
    """The packages of a lock's file. Raises UserError where it is missing, damaged or empty."""
    try:
        if entries := pins(lock.read_text(encoding="utf-8")):
            return entries
        problem = "no line of the form name==version"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except ValueError as error:
        problem = str(error)
    own = lock.parent.name == RECORDED.name
    remedy = "delete it: the next call records it again" if own else "restore it, or run `make lock`"
    raise UserError(f"{lock}: {problem}; {remedy}")


def text_of(entries: Iterable[Pin]) -> str:
    """A lock's text with these packages."""
    return "".join(entry.lines() for entry in entries)


def exactly(entries: Iterable[Pin], labelled: Collection[str] = ()) -> str:
    """What pip is asked for: each version exactly as it is locked; of `labelled`, the build with the label `+cpu`.

    For `==2.13.0` pip would take a `2.13.0+cpu` or a `2.13.0+computecanada` from a folder of wheels, whose hash the
    lock need not have. For `===2.13.0` it does not.
    """
    return "".join(entry.lines("===", "+cpu" * (entry.name in labelled)) for entry in entries)


def pinned(entries: Iterable[Pin], package: str) -> str | None:
    """The version of a package, with its label; None where it is not among them."""
    return next((entry.version for entry in entries if entry.name == package), None)


def names_and_versions(lock: Path) -> list[str]:
    """A lock as `name==version`, sorted. Hashes are left out: several files have the same version. Raises UserError."""
    return sorted(f"{entry.name.lower().replace('_', '-')}=={entry.version}" for entry in read(lock))


def base(stack: str) -> str:
    """The project's stack that a stack is, or is made from: `torch` of `torch-1a2b3c4d5e6f`."""
    return stack.partition("-")[0]


def is_recorded(stack: str) -> bool:
    """Whether a stack's lock was recorded by the login node."""
    return "-" in stack


def lock_of(root: Path, stack: str) -> Path:
    """The lock of a stack. Recorded ones are below the working directory of the workflow."""
    return RECORDED / f"{stack}.txt" if is_recorded(stack) else root / "envs" / f"{stack}.txt"
