"""The commands of rules that run beside the driver, in its own Python."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from relay.base.files import write_json
from relay.environments import locks, login_node
from relay.equivalence.verdict import of_scripts
from relay.run_folder import replaced, run_chain
from relay.run_folder.places import Places
from relay.spec.labels import counted
from relay.spec.script import NOT_PROVEN
from relay.workflow.asked import asked
from relay.workflow.call import RESULTS, Call
from relay.workflow.files import Files


class BesideDriver:
    """The parts of these rules."""

    def __init__(self, call: Call, files: Files) -> None:
        self.call, self.files = call, files
        # Looked at before Snakemake removes the output of a forced rerun.
        self._begun = dict(self._lost())

    def program(self, *command: str) -> str:
        """The beginning of a shell command that runs one of `relay`'s.

        It is no rule's param: another place of the checkout, or of the data, is no reason to train again. Snakemake
        formats it.
        """
        return self.call.relay(*command).replace("{", "{{").replace("}", "}}")

    def with_ending(self, *command: str) -> str:
        """The same, whose program writes beside the job's log how it ended."""
        return "env TORCH_RELAY_JOB_LOG={log:q} " + self.program(*command)

    def job(self, *command: str) -> str:
        """The same for the last program of a job: it takes the shell's place, so that it gets the driver's signals."""
        return "exec " + self.with_ending(*command)

    def strategy_in_words(self, strategy: str) -> str:
        """A strategy's runs, and why some are skipped, for its rule's message."""
        plan = self.call.plan
        reasons = [reason for skipped in plan.skipped_of(strategy) for reason in skipped.reasons]
        skips = "".join(f"\n  skipped: {reason}" for reason in reasons)
        return f"{strategy}: {counted(len(plan.runs_of(strategy)), 'run')}{skips}".replace("{", "{{").replace("}", "}}")

    @asked
    def no_environment(self, wildcards: Any) -> None:
        """For a rule of the driver's own Python."""

    # Data and environments

    @cached_property
    def prepare_data(self) -> str:
        """The command that prepares a dataset, and where it is to be taken from."""
        config = self.call.config
        root = [f"--root={Path(config.dataset_root).expanduser()}"] if config.dataset_root else []
        mirror = [f"--mirror={config.dataset_mirror}"] if config.dataset_mirror else []
        return self.with_ending("dataset", *root, *mirror)

    @asked
    def dataset_text(self, job: Any) -> str:
        of = self.files.datasets[job.dataset]
        return json.dumps({"task": asdict(of.task), "dataset": asdict(of.dataset)})

    @asked
    def task_environment(self, job: Any) -> str:
        """A task's `prepare` may need packages of the user's."""
        plain = self.call.plan.stacks.plain
        return json.dumps([self.files.environment_asked(plain), str(locks.lock_of(self.call.root, plain))])

    @asked
    def stack_text(self, job: Any) -> str:
        """What is asked of a stack. Whom it is for (a GPU run or not) changes nothing that is prepared."""
        return json.dumps(self.files.environment_asked(job.stack))

    @asked
    def lock(self, job: Any) -> str:
        return str(locks.lock_of(self.call.root, job.stack))

    @asked
    def load_to_build(self, job: Any) -> str:
        """What is built on the login node is built with the modules that its jobs have."""
        return login_node.load_command(login_node.modules_of_build(self.call.site, job.stack))

    # Starts of runs

    def _lost(self) -> Mapping[str, str | None]:
        """By run, the start whose training has begun, where the file that says so is lost: it is written again."""
        runs = self.call.plan.runs if self.call.drives else []
        folders = {run.id: RESULTS / "runs" / run.id for run in runs}
        undeclared = {id: folder for id, folder in folders.items() if run_chain.declared_there(folder) is None}
        return {id: run_chain.begun(folder) for id, folder in undeclared.items()}

    @asked
    def start(self, job: Any) -> str:
        """The command that names a start of a run, after it has put aside what an older one has trained."""
        begun = self._begun.get(job.run)
        aside = f"{self.call.relay('start', '--run', job.run)} >&2; "
        name = shlex.quote(begun) if begun else "$(date +%s%N)-$$"
        named = f'printf \'{{"generation": "%s", "run": "%s"}}\\n\' {name} {shlex.quote(job.run)}'
        return named if begun or not replaced.trained(Places(RESULTS, job.run)) else aside + named

    # Files

    def write_plan(self, output: str) -> None:
        Path(output).write_text(self.files.plan_text)

    def write_probed(self, output: str) -> None:
        Path(output).write_text(self.files.probed_text(), encoding="utf-8")

    def write_not_proven(self, output: str) -> None:
        write_json(Path(output), of_scripts(NOT_PROVEN))

    @asked
    def why(self, job: Any) -> str:
        """Why a file that is there is made anew."""
        return self.files.why.get(job.file, "is not finished")
