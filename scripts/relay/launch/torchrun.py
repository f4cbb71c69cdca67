"""torchrun, without its own traceback where a process fails or a signal comes: the processes tell what happened.

python -m relay.launch.torchrun [arguments of torchrun] -m relay.launch.worker ROLE WORK [its arguments]
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

from relay.base import lifeline
from relay.base.errors import UserError
from relay.chain.signals import EARLY
from relay.launch.worker import importing
from relay.process import meeting
from relay.run_folder import faults

WORKER = ["-m", "relay.launch.worker"]
# torchrun's default of 30 would cut off the save of a large model. Old versions know no argument for it and ignore the
# variable: they wait for 30 seconds.
SHUTDOWN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}
# Nobody needs the store on a port that newer versions of torchrun offer to their processes.
NO_PORT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def main(arguments: list[str]) -> int:
    """Run torchrun with these arguments; returns its exit status."""
    for number in EARLY:  # Slurm may send one to all of a job's processes: it would end torchrun before its ranks
        signal.signal(number, signal.SIG_IGN)
    with importing():
        import torch
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    lifeline.lead()
    os.environ |= {**SHUTDOWN, **NO_PORT}
    if refusal := _refusal(arguments, run.parse_args):
        message = f"torchrun of torch {torch.__version__} refuses its command line: {refusal}"
        faults.record(Path(arguments[_program(arguments) + 1]), UserError(message))
        print(message, file=sys.stderr)
        return 1
    try:
        if {*meeting.TORCHRUN} <= {*arguments}:
            with meeting.private_folder() as folder:
                run.main([f"--rdzv-endpoint={folder / 'agent'}", *arguments])
        else:
            run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"torchrun: rank {rank} ended with status {failure.exitcode}", file=sys.stderr)
        return 1
    except SignalException as signalled:
        print(f"torchrun: ended by {signalled.sigval.name}", file=sys.stderr)
        return 1
    return 0


def _refusal(arguments: list[str], parse: Callable[[list[str]], object]) -> str | None:
    """What torchrun's parser says against these arguments; None where it takes them."""
    said = StringIO()
    try:
        with redirect_stderr(said):
            parse(arguments)
    except SystemExit:
        return said.getvalue().strip().rpartition("\n")[2].rpartition("error: ")[2]
    return None


def _program(arguments: list[str]) -> int:
    """Where the arguments of the worker begin: its role, and its work directory."""
    return next(i for i in range(len(arguments)) if arguments[i : i + 2] == WORKER) + 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
