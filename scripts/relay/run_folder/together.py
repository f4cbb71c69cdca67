"""The processes of an attempt end together: each sees the others' faults in the work folder, and ends within seconds.

One that waits for a peer in a collective would not notice, on NCCL, before the group's timeout, and a launcher's
SIGTERM only asks for a save.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from relay.base.errors import PeerFailed, UserError
from relay.run_folder import alive, faults
from relay.run_folder.faults import Fault, file_of, first_of, of_ranks, world_size
from relay.run_folder.known_faults import Kind

LOOK_SECONDS = 2.0  # how often a process looks for the others' faults
GRACE_SECONDS = 5.0  # what it then has to come to an end, and to its own error, by itself
LOST = PeerFailed("its process is gone, without a word")


def guarded(work: Path, main: Callable[[], None]) -> None:
    """Run a process's main function; a fault goes into the work directory and to stderr, and ends the process.

    So does another rank's fault, and the end of one that was killed on the same node, within seconds.
    """
    rank = int(os.environ.get("RANK", "0"))
    if world_size() > 1:
        alive.come(work, rank)
        threading.Thread(target=_end_with_peer, args=(work, rank), daemon=True).start()
    try:
        main()
        alive.go()
    except (KeyboardInterrupt, SystemExit):
        alive.go()
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        with suppress(OSError):  # the log may be on the disk that is full
            own = faults.record(work, error, rank)
            if own.is_a(Kind.LOST_PEER) and (first := first_of(_of_others(work, rank))):
                _tell_follower(rank, first)  # its own traceback would only hide the one that matters
            elif not isinstance(error, UserError) and (world_size() == 1 or not file_of(work, rank).exists()):
                traceback.print_exc()  # of several the job shows the first one's alone, once all have ended
            sys.stderr.flush()
        # At once: a collective's threads could keep the process, and so the whole job, waiting.
        os._exit(1)


def _end_with_peer(work: Path, rank: int) -> None:
    """End this process some seconds after another rank's fault, wherever it waits. It leaves word that it was alive."""
    while not (others := _of_others(work, rank) or [Fault.of(LOST, killed) for killed in alive.killed(work)]):
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    others = _of_others(work, rank) or others
    first = first_of(others) or others[0]
    _tell_follower(rank, first)
    if not file_of(work, rank).exists():  # its own error may just have been recorded
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        with suppress(OSError):
            stack = "".join(traceback.format_stack(frame))
            faults.record(work, PeerFailed(f"ended with rank {first.rank}"), rank, stack)
    os._exit(1)


def _of_others(work: Path, rank: int) -> list[Fault]:
    """The faults that the other ranks of this attempt have recorded."""
    return [fault for fault in of_ranks(work) if fault.rank != rank]


def _tell_follower(rank: int, fault: Fault) -> None:
    print(f"rank {rank} ends with rank {fault.rank}: {fault.error}", file=sys.stderr, flush=True)
