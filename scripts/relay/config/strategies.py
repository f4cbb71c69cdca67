"""The strategies that a config compares: their files, and what these allow of its options."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from relay.base.errors import UserError
from relay.config.config import Config
from relay.spec import strategy_files
from relay.spec.messages import show, unknown
from relay.spec.requirements import Need, Requirements
from relay.spec.run import Setting

PAGE = "docs/strategies.md"


@dataclass(frozen=True)
class StrategyFile:
    """A strategy's file and its requirements.

    The path is relative to the working directory if the file lies below it, else absolute. `needs` are the functions
    that the requirements name; each returns a reason why a setting cannot run, or None.
    """

    file: Path
    requirements: Requirements
    needs: tuple[Need, ...] = ()

    @classmethod
    def of(cls, path: Path, *, reading: bool) -> Self:
        """Read a strategy's file. Raises UserError where it has no requirements, or they name a missing function."""
        declared, folder = strategy_files.read(path), Path.cwd()
        short = (folder / path).relative_to(folder) if (folder / path).is_relative_to(folder) else path
        return cls(short, declared, strategy_files.needs(path, declared, reading=reading))

    def unmet(self, setting: Setting) -> Iterator[str]:
        """Why a setting does not meet the strategy's own needs, which may speak of the batch; nothing where it does."""
        declared, options = self.requirements, setting.strategy.options
        group = declared.group_size(setting.shape.world_size, options)
        stages = group * declared.stages_per_process(options)
        yield from (why for need in self.needs if (why := need(setting, group, stages)))


def strategies_of(config: Config, *, reading: bool) -> dict[str, StrategyFile]:
    """The files of the strategies that a config compares, by their names. `reading`: no user's function is run.

    Raises UserError with one line for each strategy without a file, and then for each option that is not allowed.
    """
    paths = strategy_files.find([Path(folder) for folder in config.strategy_folders])
    named = [(i, each) for i, each in enumerate(config.comparisons) if each.command is None]
    _end(
        unknown(f"config: comparisons[{i}].strategy: {show(c.strategy)} is unknown", c.strategy, paths, PAGE)
        for i, c in named
        if c.strategy not in paths
    )
    names = dict.fromkeys(each.strategy for _, each in named)
    files = {name: StrategyFile.of(paths[name], reading=reading) for name in names}
    _end(
        f"config: comparisons[{i}].options.{line}"
        for i, each in named
        for line in strategy_files.wrong_options(each.options, files[each.strategy].requirements, each.strategy)
    )
    return files


def _end(wrong: Iterator[str]) -> None:
    if lines := [*wrong]:
        raise UserError("\n".join(lines))


def unit(setting: Setting, needs: Requirements) -> int:
    """The samples of which every global batch of the setting must be a multiple, so that it divides evenly.

    It divides into slices, and each slice into the parts that the strategy's options ask for.
    """
    options = setting.strategy.options
    return needs.slices(setting) * math.lcm(*(options.get(name, 1) for name in needs.whole_batches))
