"""Gates of strategies that a test writes itself, in a folder of its own, on the digits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate_runs import FEW_STEPS, Gates
from relay.base.files import read_json

RIGHT = '''\
"""Right: a strategy of a test's own."""

import os
from contextlib import contextmanager
from pathlib import Path

from relay.strategies.base import Requirements, Strategy


class Own(Strategy):
    """The whole batch in one process."""

    requirements = Requirements(processes="one"{requirements})

    def build(self, **options):
        self.build_whole()
{more}
'''


def own_strategy(folder: Path, name: str = "mine", *, requirements: str = "", more: str = "") -> Path:
    """The file of a strategy of one process. `requirements` and `more` (indented) are added to its class."""
    path = folder / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(RIGHT.format(requirements=f", {requirements}" if requirements else "", more=more))
    return path


@dataclass
class Judged:
    """The exit status of a gate's job, and its verdict (None without one)."""

    status: int
    output: Path

    @property
    def verdict(self) -> Any:
        return read_json(self.output)


def judged(gates: Gates, path: Path, **how: Any) -> Judged:
    """Judge the strategy of this file after a few steps, `how` as in `Gates.judge`."""
    return Judged(*gates.judge(path.stem, steps=FEW_STEPS, folders=[path.parent], **how))
