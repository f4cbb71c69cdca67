"""The files of a plan's strategies: what they declare and allow; and the fingerprints of settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relay.base.errors import UserError
from relay.config.config import Config
from relay.environments.locks import lock_of
from relay.spec import identity, option_values, requirements
from relay.spec.messages import near, show, unknown
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
    def of(cls, path: Path, *, reading: bool = False) -> StrategyFile:
        """Read a strategy's file. Raises UserError where it has no requirements, or they name a missing function."""
        declared, folder = requirements.read(path), Path.cwd()
        short = (folder / path).relative_to(folder) if (folder / path).is_relative_to(folder) else path
        return cls(short, declared, requirements.needs(path, declared, reading=reading))


def check_strategies(config: Config, known: Mapping[str, Path]) -> None:
    """Raise UserError with one line for each comparison whose strategy has no file."""
    wrong = [
        unknown(f"config: comparisons[{i}].strategy: {show(c.strategy)} is unknown", c.strategy, known, PAGE)
        for i, c in enumerate(config.comparisons)
        if c.command is None and c.strategy not in known
    ]
    if wrong:
        raise UserError("\n".join(wrong))


def check_options(config: Config, needs: Mapping[str, Requirements]) -> None:
    """Raise UserError with one line for each option that its strategy does not have, or whose value is not allowed."""
    wrong = []
    for i, comparison in enumerate(config.comparisons):
        if comparison.command is not None:
            continue
        defaults = needs[comparison.strategy].options
        for name, values in comparison.options.items():
            place = f"config: comparisons[{i}].options.{name}: "
            if name not in defaults:
                text = f"{show(values[0])} is not allowed, {comparison.strategy} has no such option"
                wrong.append(place + unknown(text, name, defaults))
                continue
            choices = needs[comparison.strategy].allowed(name)
            least = needs[comparison.strategy].least.get(name)
            allowed = f"{option_values.allowed(defaults[name], least)}, such as {show(defaults[name])}"
            if choices:
                allowed = ", ".join(map(str, choices))
            wrong += [
                f"{place}{show(value)} is not allowed; {near(value, choices or ())}allowed: {allowed}"
                for value in values
                if not (value in choices if choices else option_values.fits(value, defaults[name], least))
            ]
    if wrong:
        raise UserError("\n".join(wrong))


class Identities:
    """The fingerprints of one plan's settings. Raises UserError for a source that cannot be read.

    `task` is the task's name and file; None where commands are measured, which have none.
    """

    def __init__(self, root: Path, task: tuple[str, str] | None, strategies: Mapping[str, StrategyFile]) -> None:
        self.root = root
        self.task_source = identity.source_digest(identity.task_sources(root, *task)) if task else None
        self.gate_source, self.reference_source = (
            identity.source_digest(identity.module_sources(root, *modules))
            for modules in (("equivalence.gate", "strategies.base"), ("equivalence.reference",))
        )
        self.strategy_source = {
            name: identity.source_digest(identity.strategy_sources(strategy.file))
            for name, strategy in strategies.items()
        }
        self.locks: dict[str, str | None] = {}

    def lock(self, stack: str) -> str | None:
        """The digest of the versions that a stack's lock pins, or None where it has no lock."""
        if stack not in self.locks:
            path = lock_of(self.root, stack)
            self.locks[stack] = identity.fingerprint(identity.lock_lines(path)) if path.exists() else None
        return self.locks[stack]

    def of(self, setting: Setting, *, sources: Mapping[str, str] = MappingProxyType({}), **more: Any) -> str:
        """The fingerprint of a setting, with the digests of the task's source, or the script's, the stack's lock and
        `sources`.
        """
        known = {"lock": self.lock(setting.strategy.stack)}
        script = setting.strategy.script
        known |= {"script": script.source} if script else {"task": self.task_source}
        return identity.identity(setting, sources=known | dict(sources), **more)
