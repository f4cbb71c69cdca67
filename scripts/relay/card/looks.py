"""The card of each combination of a task's options: shipped, kept from an earlier look, or made by a look now.

The driver looks, in a process of its own, because the planner imports no torch: in the environment of the plain stack,
which has the user's packages.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from relay.base import entry
from relay.base.errors import UserError
from relay.config.comparisons import options_key, task_options
from relay.config.config import Config
from relay.environments import login_node, task_python
from relay.environments.locks import lock_of, names_and_versions
from relay.environments.overlay import DRIVERS
from relay.spec import identity
from relay.spec.arithmetic import Arithmetic
from relay.spec.messages import show
from relay.spec.run import TaskLook
from relay.spec.setting import Device, Shape
from relay.spec.site import Site
from relay.spec.strategy_files import checked_options
from relay.spec.tasks import NO_GPU, NO_PACKAGE, UNPREPARED, WITHOUT_GPU, Looked

SECONDS = 600  # a look that takes longer has gone wrong: a download in `datasets`, a model made on the CPU


class NotKnown(UserError):
    """What a plan needs is not known yet: the data of the task have to be prepared first."""


class ByJob(Exception):
    """A card that only a job can make: `look` is its specification, `why` the login node cannot."""

    def __init__(self, look: TaskLook, why: str) -> None:
        super().__init__(why)
        self.look = look


@dataclass(frozen=True, kw_only=True)
class Looks:
    """How cards are found. `look`: whether one may be made, and `prepare`: the data for it as well.

    `stack` is the software of what loads no strategy; `site` is None where the runs go to this machine. `device` is the
    kind of device that a job has which looks. `reading`: the call runs nothing of the user's.
    """

    config: Config
    root: Path
    results: Path
    arithmetic: Arithmetic
    stack: str = DRIVERS
    site: Site | None = None
    device: Device = "cpu"
    look: bool = False
    prepare: bool = False
    reading: bool = False

    @property
    def task(self) -> tuple[str, str]:
        """The task's name, and its file; '' for a built-in one. Raises UserError for a file that is not there."""
        given = self.config.task
        if not given.endswith(".py"):
            return given, ""
        if not Path(given).is_file():
            raise UserError(f"config: task: {show(given)}: there is no such file; paths begin at {Path.cwd()}")
        return Path(given).stem.replace("_", "-"), given

    def looked(self, options: Mapping[str, Any]) -> Looked:
        """The task with these options, and its card.

        Raises UserError; NotKnown where its data are not there; ByJob where a job has to look.
        """
        name, file = self.task
        if not file:
            shipped = Looked.read(self.root / f"scripts/relay/tasks/cards/{name}.json")
            options = checked_options(options, shipped.task.options, name)
            if options == shipped.task.options:
                return shipped
        kept = self.place(options)
        if not kept.exists():
            if self.reading:
                raise NotKnown(
                    f"task {self.config.task}: not known yet; to look at it runs its file, as `snakemake -n` does"
                )
            if not self.look:
                raise UserError(f"{kept}: is missing; the driver makes it at each call of Snakemake")
            self._look(options, kept)
        return Looked.read(kept)

    def by_options(self) -> tuple[dict[str, Looked], list[ByJob]]:
        """The task with each combination of its options; and what a job has to look at."""
        by_key, by_job = {}, []
        for options in task_options(self.config):
            try:
                by_key[options_key(options)] = self.looked(options)
            except ByJob as missing:
                by_job.append(missing)
        return by_key, by_job

    def place(self, options: Mapping[str, Any]) -> Path:
        """Where the card is kept. Its name tells what it depends on: sources, options, and what is installed."""
        name, file = self.task
        sources = {*identity.task_sources(self.root, name, file), *identity.module_sources(self.root, "card.look")}
        lock = lock_of(self.root, self.stack)
        installed = (self.arithmetic.torch, names_and_versions(lock) if lock.is_file() else None)
        digest = identity.fingerprint([identity.source_digest(sources), dict(options), installed])
        return self.results / "cards" / f"{name}-{digest}.json"

    def _python(self) -> str:
        """The Python that looks; a built-in task needs no packages but torch."""
        if not self.task[1]:
            return sys.executable
        return task_python.interpreter(self._environment, lock_of(self.root, self.stack), create=self.prepare)

    @cached_property
    def _environment(self) -> dict[str, Any]:
        return login_node.environment_of(self.site, self.stack, self.root)

    def _a_job_has(self, lacking: int, python: str) -> bool:
        """Whether a job may have what a look by that Python lacked, by its exit status."""
        if self.site is None:
            return False
        if lacking == NO_PACKAGE:
            return not task_python.has_all(self._environment, python)
        return lacking == NO_GPU and self.device == "cuda"

    def _by_job(self, options: Mapping[str, Any], kept: Path) -> TaskLook:
        """The job that makes a card in place of the login node."""
        name, file = self.task
        root = self.config.dataset_root
        return TaskLook(
            id=kept.stem,
            shape=Shape(device=self.device),
            of_stack=self.stack,
            task=name,
            file=file,
            options=dict(options),
            dataset_root=str(Path(root).expanduser()) if root else None,
            dataset_mirror=self.config.dataset_mirror,
        )

    def _look(self, options: Mapping[str, Any], output: Path) -> None:
        config = self.config
        print(f"Looking at the task {config.task}", file=sys.stderr, flush=True)
        python = self._python()
        words = entry.words(python, self.root, "card", f"--task={config.task}", f"--output={output}")
        words += [f"--options={json.dumps(dict(options))}", f"--datasets={self.results / 'datasets'}"]
        words += ["--prepare"] if self.prepare else []
        words += [f"--root={Path(config.dataset_root).expanduser()}"] if config.dataset_root else []
        words += [f"--mirror={config.dataset_mirror}"] if config.dataset_mirror else []
        try:
            seconds = None if self.prepare else SECONDS  # a download takes as long as it takes
            ended = subprocess.run(
                words, stderr=subprocess.PIPE, stdout=sys.stderr, text=True, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            raise UserError(
                f"task {config.task}: looking at it took more than {SECONDS // 60} minutes; what takes long, such as a "
                "download, belongs into `prepare`"
            ) from None
        if ended.returncode == UNPREPARED:
            raise NotKnown(
                f"task {config.task}: nothing can be planned before its data are there; `snakemake data` prepares "
                "them, with the same options, but without -n"
            )
        if self._a_job_has(ended.returncode, python):
            raise ByJob(self._by_job(options, output), ended.stderr.strip().removeprefix("error: "))
        if ended.returncode:
            _, is_mistake, message = f"\n{ended.stderr.strip()}".rpartition("\nerror: ")  # a line for each mistake
            line = message if is_mistake else message.strip().rpartition("\n")[2]
            line = line or f"task {config.task}: looking at it ended with status {ended.returncode} and said nothing"
            raise UserError(line + (WITHOUT_GPU if ended.returncode == NO_GPU else ""))
        sys.stderr.write(ended.stderr)
