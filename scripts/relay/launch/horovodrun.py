"""Horovod's own program, as a launcher: it starts all processes of its node (document 000).

On several nodes horovodrun would need ssh between them, which jobs do not have: there srun starts the processes.
It would stop them at the first signal, and kill them after five seconds. So it runs in a process of its own, which
hears no signal, and the processes are told past it.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial

from relay.base.lifeline import LAUNCHER
from relay.chain.signals import EARLY, SIGNALS
from relay.chain.supervisor import Supervisor, end_with_parent
from relay.launch import worker
from relay.launch.command_lines import free_port
from relay.process import meeting

MODULE = "relay.launch.horovodrun"
RUNNER = "runner"  # the first argument of the process that is horovodrun
PROCESS = "process"  # and of one that it has started
# What torchrun tells its processes, from what horovodrun tells its own.
VARIABLES = {
    "RANK": "HOROVOD_RANK",
    "LOCAL_RANK": "HOROVOD_LOCAL_RANK",
    "WORLD_SIZE": "HOROVOD_SIZE",
    "LOCAL_WORLD_SIZE": "HOROVOD_LOCAL_SIZE",
}


class Past(Supervisor):
    """Supervises horovodrun, and tells the processes past it."""

    def begin(self, count: int, program: list[str]) -> None:
        """Start horovodrun with `count` processes."""
        words = [sys.executable, "-u", "-m", MODULE, RUNNER, str(count), *program]
        self.start(words, os.environ, begin=partial(end_with_parent, signal.SIGKILL))

    def whom(self) -> list[int]:
        """The processes; between them and this one are shells, and processes of horovodrun's own."""
        import psutil

        pids: list[int] = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                # A data worker, which is a fork of one, ignores signals only once it has begun.
                if process.cmdline()[3:5] == [MODULE, PROCESS] and process.ppid() not in pids:
                    pids.append(process.pid)
        return pids


def runner(count: int, program: list[str]) -> int:
    """Be horovodrun; its exit status."""
    # What is between this process and the ranks inherits what is ignored: Slurm may send EARLY to all of a job's
    # processes. What has a handler here has none there. The ranks set their own.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN if number in EARLY else lambda *_: None)
    from horovod.runner import gloo_run, launch

    # Its own handlers would take the place of these.
    gloo_run.register_shutdown_event = threading.Event
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    here = [f"--num-proc={count}", f"--hosts=localhost:{count}", "--gloo", "--disable-cache"]
    sys.argv = ["horovodrun", *here, sys.executable, "-u", "-m", MODULE, PROCESS, *program]
    try:
        meeting.horovod_listens_at("127.0.0.1")
        launch.run_commandline()
    except RuntimeError as error:
        reason = " ".join(str(error).split()).partition("The first process to do so was: ")[2] or str(error)
        print(f"horovodrun: a process ended early: {reason}", file=sys.stderr)
        return 1
    return 0


def process(program: list[str]) -> None:
    """Do the work of one process, with the environment variables that torchrun would set."""
    os.environ.update({name: os.environ[variable] for name, variable in VARIABLES.items()})
    os.environ[LAUNCHER] = str(os.getppid())
    worker.work(program)


if __name__ == "__main__":
    if sys.argv[1] == PROCESS:
        process(sys.argv[2:])
    else:
        sys.exit(runner(int(sys.argv[2]), sys.argv[3:]))
