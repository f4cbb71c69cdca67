"""Runs a command as it stands: on each node, or once for each process. The first one records what is known of it.

Started by the launcher: `python -m relay.launch.worker script.process WORK --help`.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

from relay.base import options
from relay.base.clock import duration, steady
from relay.base.errors import Told, UserError
from relay.base.lock import exclusive
from relay.chain import supervisor
from relay.chain.signals import ordered
from relay.chain.supervisor import Supervisor, children, descendants, program, send
from relay.chain.telling import NOTE, PLACE, STOPPED, read_stop
from relay.process import cpus, gpus, meeting, system
from relay.process.usage import KNOWN, Usage, watched
from relay.run_folder.attempts import record_begin
from relay.run_folder.known_faults import look_up
from relay.run_folder.samples import samples_path
from relay.script import outside, why
from relay.script.command import Here, folder_of, variables, words
from relay.script.observed import Observed, Records
from relay.script.output import Output
from relay.spec.run import Run, Training
from relay.spec.script import started_by_torchrun
from relay.spec.versions import installed

RECORD_SECONDS = 5.0  # between two records: so much is lost where a job is killed
END_SECONDS = 5.0  # for the last output, once the command has ended
KILLED_STATUS = (-signal.SIGKILL, 128 + signal.SIGKILL)  # a shell's way to tell it
SHELLS = ("bash", "sh", "dash", "zsh", "ksh", "ksh93", "ksh2020", "mksh", "busybox")
# The versions that are recorded, of what a training may use.
LIBRARIES = ("torch", "torchvision", "numpy", "lightning", "transformers", "deepspeed", "horovod")


def main(arguments: list[str]) -> None:
    """Run the command of a run to its end, or to a signal."""
    given = options.parser(__doc__, "spec", "work", "attempt", "minutes", prog="script.process").parse_args(arguments)
    run, work = Training.read(given.spec), given.work
    script, here = run.strategy.script, Here.of(run, os.environ)
    assert script is not None
    cpus.check(f"run {run.id}", run.shape.threads)
    first = here.rank == 0
    supervisor.adopt_orphans()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with exclusive(work) if first else nullcontext(), nullcontext() if here.per_process else meeting.private_folder():
        (work / "records").mkdir(exist_ok=True)
        folder = folder_of(work, script)
        environment = variables(run, here, work, given.attempt, os.environ)
        line = words(run, run.repeat if isinstance(run, Run) else 0, here, work, environment)
        batch, warmup_steps = run.batch.global_batch_size, run.length.warmup_steps
        observed = Observed(script, batch, warmup_steps, Path(environment[PLACE]))
        records = Records(work, given.attempt, observed, on_gpus=run.shape.device == "cuda") if first else None
        shown = gpus.visible() if run.shape.device == "cuda" and not here.local_rank else gpus.Visible()
        if records:
            record_begin(work, given.attempt, 0, [_facts(run, here, shown.kinds)])
            print(f"$ cd {folder} && {' '.join(line)}", flush=True)
        with Child(observed, given.minutes, records) as child:
            with outside.watched(script, folder) if first else nullcontext():
                child.begin(line, folder, environment, shielded=started_by_torchrun(script.command) is not None)
                with _watched(run, here, work, given.attempt, shown.uuids):
                    status = child.wait()
            stop_note = read_stop(Path(environment[NOTE]), status, ordered=child.stopped_by is not None or child.late)
            child.conclude(stop_note, lambda how: why.failed(how, observed, script, folder))


class Child(Supervisor):
    """The command, as a process with a group of its own: a signal comes to it once, from here.

    `minutes` are its time limit, after which it is told to end; None where a scheduler keeps it.
    `late` says that it was. What is known of it goes to `records`, meanwhile. `stopped_by` is the signal that has
    ended it, from here or from elsewhere.
    """

    def __init__(self, observed: Observed, minutes: float | None, records: Records | None) -> None:
        super().__init__()
        self.observed, self.minutes, self.records, self.late = observed, minutes, records, False
        self.stopped_by: int | None = None
        self._recorded = time.monotonic()

    def begin(self, line: list[str], folder: Path, environment: dict[str, str], *, shielded: bool) -> None:
        """Start the command, `shielded` from SIGUSR1 and 2 where it is a launcher. Raises UserError."""
        self.started = steady()
        own: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        own |= {"cwd": folder, "begin": supervisor.shield if shielded else supervisor.end_with_parent}
        try:
            self.process = self.start(line, environment, process_group=0, **own)
        except OSError as error:
            raise UserError(f"the command's program '{line[0]}' cannot be started: {error.strerror}") from None
        assert self.process.stdout is not None
        self.output = Output(self.process.stdout, self.observed.line)  # type: ignore[arg-type]  # buffered, and binary
        self.output.start()

    def wait(self) -> int:
        """Wait for its end, and end what it has left behind."""
        status = super().wait()
        self.ended, self.stopped_by = steady(), ordered(self.received, 0 if self.late else status)
        self.kill()
        self.output.join(END_SECONDS)
        return status

    def look(self) -> None:
        """Record what is known meanwhile."""
        self.late |= bool(self.minutes) and steady() - self.started > 60 * (self.minutes or 0)
        if self.records and time.monotonic() - self._recorded >= RECORD_SECONDS:
            self.records.write()
            self._recorded = time.monotonic()

    def must_end(self) -> bool:
        """Whether the command is to end."""
        return super().must_end() or self.late

    def whom(self) -> list[int]:
        """The launcher or the script itself, which a shell would leave alone; then the shell, before its next line.

        A shell that traps the signal gets it, too, as from Slurm.
        """
        running = self.left()
        # `./train.sh` is run by a shell, too, and `exec` puts another program in its place.
        inner = children(running[0]) if running and program(running[0]) in SHELLS else []
        if inner and self.signalled:  # they save, or are what the shell does at its own end
            return []
        return [*inner, *running] if not inner or supervisor.hears(running[0], signal.SIGTERM) else inner

    def kill(self, left: Sequence[int] = ()) -> None:
        """End whatever the command has started, in whatever group or session: this process has adopted orphans."""
        deadline = time.monotonic() + END_SECONDS
        while (left := descendants(os.getpid())) and time.monotonic() < deadline:
            for pid in left:
                send(pid, signal.SIGKILL)
            self.process.poll()
            with suppress(ChildProcessError):
                while self.process.returncode is not None and os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)

    def conclude(self, stop_note: dict[str, Any] | None, failed: Callable[[str], UserError]) -> None:
        """Record the command's end. Raises UserError where it did not end well: what `failed` makes of how it ended.

        `stop_note` is what a chain has told.
        """
        observed, records, status = self.observed, self.records, self.process.returncode
        stopped, step = None, None
        if stop_note:
            stopped, step = str(stop_note["reason"]), int(stop_note["step"])
            if status == 0:
                had = f"had stopped after step {step}"
                print(f"warning: the script ended with status 0, and {had}: let SystemExit pass")
        elif self.stopped_by:  # whatever its status: many scripts save, and end with 0
            stopped = signal.Signals(self.stopped_by).name
        elif status == STOPPED:
            stopped = f"status {STOPPED}"
        elif self.late:
            silent = duration(self.ended - observed.heard)
            remedy = "give more runtime_minutes or fewer steps, or make it a chain (docs/make-your-script-a-chain.md)"
            late = f"the command had not ended after {self.minutes:g} minutes (runtime_minutes)"
            raise Told(f"{late}; its last line came {silent} before its end{observed.shown()}", remedy)
        if records:
            records.write()
        if stopped is None and status:
            if status in KILLED_STATUS or any(look_up(line, "output") for line in observed.lines):
                print(f"the command, or a process of it, was killed (status {status})", file=sys.stderr, flush=True)
                sys.exit(1)  # no fault of its own: worth a retry
            by = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
            raise failed(f"the command {by}")
        if records:
            if stopped is None and (missing := observed.missing()):
                raise UserError(f"{missing}{observed.shown()}")
            if doubt := observed.doubt():
                print(f"warning: {doubt}", flush=True)
            records.end(self.ended - self.started, stopped=stopped or "", step=step, asks_again=status == STOPPED)


def _watched(run: Training, here: Here, work: Path, attempt: int, uuids: Sequence[str]) -> AbstractContextManager[None]:
    """While this lasts, look at what the command, or all processes of this node, use. `uuids`: of the GPUs shown."""
    seconds = run.length.monitor_seconds
    if not seconds or not KNOWN or here.local_rank:
        return nullcontext()
    if len(uuids) != (declared := run.shape.gpus_per_node):  # others may be another user's
        shown = f"CUDA shows {len(uuids)} GPUs to the command, and the run declares {declared}"
        print(f"note: how busy GPUs are is not recorded: {shown}; name its own in CUDA_VISIBLE_DEVICES", flush=True)
        uuids = ()
    # Of a command for each process, all have one parent. Else this process has adopted what the command leaves behind.
    usage = Usage([os.getppid() if here.per_process else os.getpid()], themselves=False)
    return watched(samples_path(work, attempt, here.rank), usage, uuids, cpus=run.shape.cpus_per_node, seconds=seconds)


def _facts(run: Training, here: Here, kinds: Sequence[str]) -> dict[str, Any]:
    """What the command runs on, without importing torch. `kinds` are those of the GPUs."""
    libraries = {name: version for name in LIBRARIES if (version := installed(name))}
    return {
        **system.facts(),
        "device_name": " and ".join(sorted({*kinds})) or ("GPU" if run.shape.device == "cuda" else system.processor()),
        "threads": run.shape.threads * (1 if here.per_process else run.shape.processes_per_node),
        "versions": {"python": sys.version.split()[0], "driver": system.driver(), **libraries},
    }
