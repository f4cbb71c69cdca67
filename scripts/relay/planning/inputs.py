"""What a plan is made from: where its runs go, what is compared, the task; and what makes two runs the same run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from relay.config.commands import Command
from relay.config.config import Config
from relay.config.strategies import StrategyFile
from relay.environments.locks import lock_of, names_and_versions
from relay.launch.gpus import ALONE, Sharing, count_gpus
from relay.process.cpus import granted
from relay.slurm.held import Held
from relay.spec import identity
from relay.spec.arithmetic import Arithmetic
from relay.spec.run import Setting
from relay.spec.setting import Device
from relay.spec.site import Site
from relay.spec.tasks import Looked


@dataclass(frozen=True, kw_only=True)
class Here:
    """Where the runs go: this machine, or the nodes of a site.

    `gpus` and `cpus` are the numbers of this machine. They are None where only the jobs can count them. `sharing`: how
    many ranks a GPU may have. `held`: the allocation that the driver runs in, whose nodes are all that there are.
    `arithmetic` is the driver's.
    """

    device: Device
    gpus: int | None
    cpus: int | None
    site: Site | None
    sharing: Sharing
    held: Held | None
    arithmetic: Arithmetic

    @classmethod
    def of(
        cls,
        config: Config,
        site: Site | None = None,
        *,
        held: Held | None = None,
        gpus: Callable[[], int] | int = count_gpus,
        cpus: int | None = None,
        sharing: Sharing = ALONE,
        arithmetic: Arithmetic | None = None,
    ) -> Self:
        """Where a config's runs go. What is not given is looked up in this process.

        Device `auto` is decided here, because a job on another machine might decide otherwise.
        """
        device, count, has_gpus = config.device, None, False
        if site is not None:
            cpus, has_gpus = None, any(partition.device == "cuda" for partition in site.partitions)
        else:
            cpus = cpus or len(granted())
            if held is not None:
                cpus, gpus = held.bounded(len(granted()), gpus)
            if device != "cpu":
                count = gpus if isinstance(gpus, int) else gpus()
                has_gpus = count > 0
                # `cuda` is accepted without a GPU: the driver is told why there is none.
                count = None if device == "cuda" and not has_gpus else count
        chosen: Device = ("cuda" if has_gpus else "cpu") if device == "auto" else device
        return cls(
            device=chosen,
            gpus=count,
            cpus=cpus,
            site=site,
            sharing=sharing,
            held=held,
            arithmetic=arithmetic or Arithmetic.here(),
        )


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
            self.locks[stack] = identity.fingerprint(names_and_versions(path)) if path.exists() else None
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
    """What settings are made from: strategies and commands by their names, and the task as it was looked at.

    `tasks` is the task with each combination of its options, by `options_key`; none where commands are measured.
    """

    here: Here
    strategies: Mapping[str, StrategyFile]
    commands: Mapping[str, Command]
    tasks: Mapping[str, Looked]
    identities: Identities

    @property
    def learning_rate(self) -> float:
        """The task's, or the config's for it. The task's options do not change it."""
        return next(iter(self.tasks.values())).task.learning_rate
