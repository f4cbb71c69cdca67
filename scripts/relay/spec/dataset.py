"""What a prepared dataset is, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """The data of a task: what its `prepare` makes, once for all runs.

    `name` is the task's `data`, and `version` a digest of what decides its content: `prepare`, the options that it
    reads, and the task's `data_version`.
    """

    name: str
    version: str
    train_count: int
    test_count: int

    @property
    def directory_name(self) -> str:
        """Its folder below `results/datasets/`."""
        return f"{self.name}-{self.version}"
