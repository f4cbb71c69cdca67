"""What a look at a task's file tells: the task and its data, as plain data in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from relay.base.errors import UserError
from relay.base.files import write_json
from relay.base.typed import built
from relay.spec.dataset import DatasetSpec
from relay.spec.tasks import TaskSpec

# Exit statuses of `relay card`: the task's data, what it imports, or a GPU is not there.
UNPREPARED, NO_PACKAGE, NO_GPU = 3, 4, 5


@dataclass(frozen=True, kw_only=True)
class Looked:
    """A task with its card, its data, and what the look warns of.

    `task.options` are all options of the task with their values, those of the class where none were given.
    `task.file` is as the config writes it; '' for a built-in task. `warnings` are lines for the user.
    """

    task: TaskSpec
    dataset: DatasetSpec
    warnings: tuple[str, ...] = ()

    def write(self, path: Path) -> None:
        """Write it as JSON. Raises OSError."""
        write_json(path, json.loads(json.dumps(asdict(self))))

    @classmethod
    def read(cls, path: Path) -> Self:
        """The inverse of `write`. Raises UserError where the file cannot be read or comes from another version."""
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise UserError(f"{path}: is no card of this version ({fault}); delete it, it is made anew") from None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From the JSON of `asdict`. Raises ValueError, TypeError or KeyError."""
        return built(cls, values)
