"""Whether an environment still has every file that was installed. Standard library only.

Cleaners of /tmp delete files one by one, and so does a person who looks for room.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

PACKAGES = "lib/python3*/site-packages"


def packages(environment: Path) -> list[str]:
    """The names of the packages' own folders (`*.dist-info`), for the mark that the environment is complete."""
    return sorted(path.name for path in environment.glob(f"{PACKAGES}/*.dist-info"))


def is_whole(environment: Path, marker: str) -> bool:
    """Whether the environment was completed and has every file of the packages that its marker names."""
    try:
        named = json.loads((environment / marker).read_text(encoding="utf-8"))["packages"]
        folder = next(environment.glob(PACKAGES))
        records = [(folder / name / "RECORD").read_text(encoding="utf-8") for name in named]
    except (OSError, ValueError, KeyError, StopIteration):
        return False
    return (environment / "bin/python").exists() and all(_has_files(folder, record) for record in records)


def _has_files(folder: Path, record: str) -> bool:
    """Whether all of a package's files exist with their recorded sizes. Files without a size (bytecode) do not count.

    `record` is the text of the package's RECORD file.
    """
    try:
        # Paths are plain text here, because pathlib would take a second for torch's 15,000 files.
        sized = [(f"{folder}/{path}", int(size)) for path, _, size in csv.reader(record.splitlines()) if size]
        return all(os.stat(path).st_size == size for path, size in sized)  # noqa: PTH116
    except (OSError, ValueError):
        return False
