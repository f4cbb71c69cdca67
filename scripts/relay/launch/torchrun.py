"""torchrun, without its own traceback where a process fails or a signal comes: the processes tell what happened.

python -m relay.launch.torchrun [arguments of torchrun]
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

if __name__ == "__main__":
    try:
        main()
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        print(f"torchrun: rank {rank} ended with status {failure.exitcode}", file=sys.stderr)
        sys.exit(1)
    except SignalException as signalled:
        print(f"torchrun: ended by {signalled.sigval.name}", file=sys.stderr)
        sys.exit(1)
