"""What the settings of a plan are made from: all that is found out before the first of them; and their fingerprints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relay.card.looks import Looks
from relay.config.commands import Command
from relay.config.config import Config
from relay.config.strategies import StrategyFile
from relay.environments.locks import lock_of
from relay.planning.settings import Here
from relay.spec import identity
from relay.spec.arithmetic import Arithmetic
from relay.spec.looked import Looked
from relay.spec.run import Setting


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
        digests = {"lock": self.lock(setting.strategy.stack)}
        script = setting.strategy.script
        digests |= {"script": script.source} if script else {"task": self.task_source}
        return identity.identity(setting, sources=digests | dict(sources), **more)

    def of_gate(self, gated: Setting, **more: Any) -> str:
        """The same of a setting as its gate trains it."""
        sources = {"strategy": self.strategy_source[gated.strategy.name], "gate": self.gate_source}
        return self.of(gated, sources=sources, **more)

    def of_reference(self, referred: Setting, **more: Any) -> str:
        """The same of a setting that a reference trains."""
        return self.of(referred, sources={"reference": self.reference_source}, **more)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The strategies and the commands of a config by their names, and its task as it was looked at.

    `tasks` is the task with each combination of its options, by `options_key`; none where commands are measured.
    """

    here: Here
    arithmetic: Arithmetic
    strategies: Mapping[str, StrategyFile]
    commands: Mapping[str, Command]
    tasks: Mapping[str, Looked]
    identities: Identities

    @property
    def learning_rate(self) -> float:
        """The task's, or the config's for it. The task's options do not change it."""
        return next(iter(self.tasks.values())).task.learning_rate


def as_configured(looked: Looked, config: Config, looks: Looks) -> Looked:
    """A task that was looked at; the config's learning rate replaces its own, if there is one."""
    rate = config.learning_rate or looked.task.learning_rate
    # The file is not that of the look: the folder may be another one.
    return replace(looked, task=replace(looked.task, file=looks.task[1], learning_rate=rate))
