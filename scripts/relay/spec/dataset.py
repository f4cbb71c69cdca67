"""What a dataset is, as plain data: declared with its kind, written into each run, and repeated in its manifest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """A dataset as the dataset stage prepares it.

    `kind` names a file in `relay/datasets/kinds`, which says how samples are stored and read. `shape` is one sample's.
    `classes` is None for regression. `version` changes whenever the prepared arrays would.
    """

    name: str
    version: str
    kind: str
    shape: tuple[int, ...]
    classes: int | None
    train_count: int
    test_count: int

    @property
    def directory_name(self) -> str:
        """Its folder below `results/datasets/`. The config chooses the size of `synthetic`: each size has its own."""
        if self.name != "synthetic":
            return self.name
        shape = "x".join(map(str, self.shape))
        return f"synthetic-{shape}-{self.train_count}-{self.test_count}-{self.classes}"
