"""What the jobs of `snakemake libtorch` have found, read from their files: for the terminal, and for the report."""

from dataclasses import dataclass
from pathlib import Path

from relay.base import typed


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
    """All findings, by task. What cannot be read is left out."""
    records = (typed.read(InCpp, path) for path in sorted((results / "libtorch").glob("*.json")))
    return sorted(filter(None, records), key=lambda each: each.task)


def in_cpp_lines(results: Path) -> str:
    """A line for each task, for the terminal."""
    return "\n".join(map(_line, in_cpp(results))) or "no trained model was run in C++"


def _line(each: InCpp) -> str:
    if each.ratio is None or each.difference is None or each.limit is None:
        return f"{each.task}: {each.status}: {each.reason}"
    speeds = f"{each.cpp_samples_per_second:,.0f} samples/s in C++, {each.python_samples_per_second:,.0f} in Python"
    outputs = f"outputs {each.status} (largest difference {each.difference:.1e} of {each.limit:.0e} allowed)"
    return f"{each.task} [{each.run}]: {outputs}; {speeds} ({each.ratio:.2f} times as fast)"
