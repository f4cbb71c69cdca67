"""torchrun, without its own traceback where a process fails or a signal comes: the processes tell what happened.

    python -m relay.launch.torchrun [--fork] [arguments of torchrun] -m relay.launch.worker ROLE WORK [its arguments]

With --fork the ranks are forks of this process (`relay.launch.forked`), where their environment allows it.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import AbstractContextManager, nullcontext

from relay.base import lifeline
from relay.launch import forked
from relay.launch.imports import importing

FORK = "--fork"
WORKER = ["-m", "relay.launch.worker"]
COUNT = "--nproc-per-node=([0-9]+)"


def main(arguments: list[str]) -> int:
    """Run torchrun with these arguments; returns its exit status."""
    with importing():
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    lifeline.lead()
    forks = FORK in arguments[:1]
    arguments = arguments[forks:]
    try:
        with _forks(arguments) if forks else nullcontext():
            run.main(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"torchrun: rank {rank} ended with status {failure.exitcode}", file=sys.stderr)
        return 1
    except SignalException as signalled:
        print(f"torchrun: ended by {signalled.sigval.name}", file=sys.stderr)
        return 1
    return 0


def _forks(arguments: list[str]) -> AbstractContextManager[None]:
    """The context in which torchrun's ranks are forks of this process; none where they have to be started anew."""
    if not forked.may_fork(os.environ):
        return nullcontext()
    place = next(i for i in range(len(arguments)) if arguments[i : i + 2] == WORKER)
    program = arguments[place + 2 :]
    count = next(int(found[1]) for word in arguments[:place] if (found := re.fullmatch(COUNT, word)))
    forked.preload(program[0])
    return forked.WaitingRanks(count, program).instead_of_new_ones()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
