"""torchrun, without its own traceback where a process fails or a signal comes: the processes tell what happened.

python -m relay.launch.torchrun [arguments of torchrun] -m relay.launch.worker ROLE WORK [its arguments]
"""

import os
import signal
import sys

from relay.base import lifeline
from relay.chain.signals import EARLY
from relay.launch.worker import importing
from relay.process import meeting

# torchrun's default of 30 would cut off the save of a large model. Old versions know no argument for it and ignore the
# variable: they wait for 30 seconds.
SHUTDOWN = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600"}
# Nobody needs the store on a port that newer versions of torchrun offer to their processes.
NO_PORT = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


def main(arguments: list[str]) -> int:
    """Run torchrun with these arguments; returns its exit status.

    Where its parser refuses them, it says so, and ends the process with status 2.
    """
    for number in EARLY:  # Slurm may send one to all of a job's processes: it would end torchrun before its ranks
        signal.signal(number, signal.SIG_IGN)
    with importing():
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    lifeline.lead()
    os.environ |= {**SHUTDOWN, **NO_PORT}
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
