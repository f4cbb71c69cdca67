"""What other targets have found, for the page: trained models in C++, and the largest models that fit."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from relay.base.files import read_json, read_json_or
from relay.run_folder.largest_model import LargestModel, of_record


@dataclass(frozen=True)
class InCpp:
    """One task's trained model in C++, beside Python. Figures are None where it was skipped.

    `difference` and `limit` are relative to the largest output, or to 1.
    """

    task: str
    run: str
    status: str
    reason: str
    device: str
    threads: int
    batch: int
    difference: float | None = None
    limit: float | None = None
    python_samples_per_second: float | None = None
    cpp_samples_per_second: float | None = None

    @property
    def ratio(self) -> float | None:
        """C++'s speed over Python's."""
        if not self.python_samples_per_second or not self.cpp_samples_per_second:
            return None
        return self.cpp_samples_per_second / self.python_samples_per_second


def in_cpp(results: Path) -> list[InCpp]:
    """All that the jobs of `snakemake libtorch` have found, by task. What cannot be read is left out."""
    known = {each.name for each in fields(InCpp)}
    read: list[InCpp] = []
    for path in sorted((results / "libtorch").glob("*.json")):
        try:
            values = read_json(path) or {}
            read.append(InCpp(**{name: value for name, value in values.items() if name in known}))
        except (OSError, ValueError, TypeError, AttributeError):
            continue
    return sorted(read, key=lambda each: each.task)


def in_cpp_lines(results: Path) -> str:
    """A line for each task, for the terminal."""
    return "\n".join(map(_line, in_cpp(results))) or "no trained model was run in C++"


def _line(each: InCpp) -> str:
    if each.ratio is None or each.difference is None or each.limit is None:
        return f"{each.task}: {each.status}: {each.reason}"
    speeds = f"{each.cpp_samples_per_second:,.0f} samples/s in C++, {each.python_samples_per_second:,.0f} in Python"
    outputs = f"outputs {each.status} (largest difference {each.difference:.1e} of {each.limit:.0e} allowed)"
    return f"{each.task} [{each.run}]: {outputs}; {speeds} ({each.ratio:.2f} times as fast)"


def largest_models(results: Path, names: Mapping[str, str]) -> list[LargestModel]:
    """What was found of the settings with these names, by id, in their order. What cannot be read is left out."""
    read = []
    for setting, name in names.items():
        record = read_json_or(results / "largest_model" / f"{setting}.json", {})
        with suppress(TypeError, AttributeError, KeyError):
            read.append(of_record(record, name))
    return read
