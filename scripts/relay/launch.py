"""Starts a run's processes on this node and waits for them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from relay.interruption import SIGNALS
from relay.run import Run

INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: worth a retry
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
SHUTDOWN_SECONDS = 600  # torchrun's 30 would cut off the save of a large model


def command(run: Run, role: str, work: Path, arguments: Sequence[str]) -> list[str]:
    """The command line that starts the run's processes: plain Python, or torchrun on this one node."""
    program = ["-m", "relay.worker", role, str(work), *arguments]
    if run.launcher == "none":
        return [sys.executable, *program]
    # Standalone: a free port of this node, so that two runs on it never meet.
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={run.processes_per_node}"]
    return [sys.executable, *torchrun, f"--shutdown-timeout={SHUTDOWN_SECONDS}", *program]


def environment(run: Run, code: Path) -> dict[str, str]:
    """The processes' environment: the frozen code, and as many OpenMP threads as the run declares for each."""
    # torchrun would warn that it sets OMP_NUM_THREADS to 1; Snakemake exports its own idea of it.
    return {**os.environ, "PYTHONPATH": str(code.resolve()), "OMP_NUM_THREADS": str(run.threads)}


def _end_with_parent() -> None:
    """In the child: be sent SIGTERM when the parent dies, even by SIGKILL (Linux; elsewhere the trainers notice)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def launch(run: Run, role: str, work: Path, arguments: Sequence[str], code: Path) -> int:
    """Run the processes to their end and return the launcher's exit status (negative: the signal that killed it).

    `role` is the worker's: trainer, gate or reference; faults are recorded in `work`.
    SIGTERM, SIGINT and SIGUSR2 are passed on, so that the processes can save and end by themselves.
    """
    child = subprocess.Popen(
        command(run, role, work, arguments),
        env=environment(run, code),
        preexec_fn=_end_with_parent,  # noqa: PLW1509  # this process has one thread
    )

    def pass_on(number: int, _: FrameType | None) -> None:
        # torchrun knows no SIGUSR2; it hands SIGTERM to its processes.
        child.send_signal(signal.SIGTERM if number == signal.SIGUSR2 else number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
