"""Gates of strategies that a test writes itself, in a folder of its own, on the digits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate_runs import FEW_STEPS, Gates
from plans import strategy_folder
from relay.base.files import read_json


def own_strategy(folder: Path, name: str = "mine", *, requirements: str = "", more: str = "") -> Path:
    """The file of a strategy of one process. `requirements` and `more` (indented) are added to its class."""
    stated = f"processes='one', {requirements}"
    return Path(strategy_folder(folder, name, stated, more)) / f"{name}.py"


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
