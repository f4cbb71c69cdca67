"""A fault of the program's own is written down by the process that had it; a retry then ends at once with it.

All processes of an attempt see the others' faults in the work directory, and end: one that waits for a peer in a
collective would not notice, on NCCL, before the group's timeout, and a launcher's SIGTERM only asks for a save. The
attempt's name is part of the files' names, so that what an earlier attempt left ends no process of a later one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base import ending, room
from relay.base.errors import Busy, EndedItself, PeerFailed, UserError
from relay.base.files import read_json_or
from relay.run_folder import attempt_name
from relay.run_folder.trust import make_own

FAULT = "fault.json"
MEMBERS = {"error": str, "rank": int, "time": int | float, "mistake": bool, "lost_peer": bool, "kind": str}
LOOK_SECONDS = 2.0  # how often a process looks for the others' faults
OUTLIVED_SECONDS = 3600.0  # a younger fault may be one of another job of the same run, whose processes look for it
GRACE_SECONDS = 5.0  # what it then has to come to an end, and to its own error, by itself


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def lost_peer(error: BaseException) -> bool:
    """Whether an error only says that another process is gone or silent.

    gloo and Horovod raise plain RuntimeErrors for that: only their text tells.
    """
    distributed = type(error).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError")
    text = str(error)
    told = isinstance(error, PeerFailed) or any(
        words in text
        for words in ("closed by peer", "reset by peer", "gloo/transport", "Broken pipe", "Horovod has been shut down")
    )
    return distributed or told or (error.__cause__ is not None and lost_peer(error.__cause__))


def guarded(work: Path, main: Callable[[], None]) -> None:
    """Run a process's main function; a fault goes into the work directory and to stderr, and ends the process.

    So does another rank's fault, within seconds.
    """
    rank = int(os.environ.get("RANK", "0"))
    if _world_size() > 1:
        threading.Thread(target=_end_with_peer, args=(work, rank), daemon=True).start()
    try:
        main()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        with suppress(OSError):  # the log may be on the disk that is full
            record(work, error, rank)
            if lost_peer(error) and (first := _first(_of_others(work, rank))):
                _tell_follower(rank, first)  # its own traceback would only hide the one that matters
            elif not isinstance(error, UserError) and _world_size() == 1:
                traceback.print_exc()  # of several processes `collect` shows the first one's alone, once all have ended
            sys.stderr.flush()
        # At once: a collective's threads could keep the process, and so the whole job, waiting.
        os._exit(1)


def _end_with_peer(work: Path, rank: int) -> None:
    """End this process some seconds after another rank's fault, wherever it waits."""
    while not (found := _of_others(work, rank)):
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    _tell_follower(rank, _first(found) or found[0])
    os._exit(1)


def _tell_follower(rank: int, fault: dict[str, Any]) -> None:
    print(f"rank {rank} ends with rank {fault['rank']}: {fault['error']}", file=sys.stderr, flush=True)


def _of_others(work: Path, rank: int) -> list[dict[str, Any]]:
    """The faults that the other ranks of this attempt have recorded."""
    return [fault for fault in told(work) if fault["rank"] != rank]


def told(work: Path) -> list[dict[str, Any]]:
    """The faults that the ranks of this attempt have recorded, in the order of ranks."""
    found = (_read(path) for path in room.found(work, f"fault-{attempt_name.name()}-*.json"))
    return sorted((fault for fault in found if fault), key=lambda fault: int(fault["rank"]))


def _read(path: Path) -> dict[str, Any] | None:
    """A recorded fault; None where it is gone, or damaged."""
    found = read_json_or(path, None)
    whole = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in MEMBERS.items())
    return found if whole else None


def _first(faults: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first fault that is more than the loss of a peer."""
    own = [fault for fault in faults if not fault["lost_peer"]]
    return min(own, key=lambda fault: float(fault["time"]), default=None)


def record(work: Path, error: BaseException, rank: int = 0) -> None:
    """Write an error that is being handled down as this rank's fault."""
    line = " ".join(str(error).split())
    fault = {
        "error": line if isinstance(error, UserError) else f"{type(error).__name__}: {line}",
        "rank": rank,
        "world_size": _world_size(),
        "traceback": traceback.format_exc(),
        "time": time.time(),
    }
    fault |= {"lost_peer": lost_peer(error), "mistake": isinstance(error, UserError), "kind": type(error).__name__}
    fault |= {"remedy": ending.remedy_of(error)}
    room.write(work / f"fault-{attempt_name.name()}-{rank}.json", fault)


def collect(work: Path) -> dict[str, Any] | None:
    """The first fault of the ranks as `fault.json`; None where there is none but the loss of a peer.

    Of several processes, its traceback goes to stderr: each has kept its own to itself.

    A rank that was killed leaves no word of its own: the others' errors about it are an interruption, worth a retry.
    They go to stderr, because nothing else says what happened.
    """
    known = told(work)
    first = _first(known)
    room.forget(work, f"fault-{attempt_name.name()}-*.json")
    if first and passes(first):  # not kept: a retry may find the place free
        return first
    if first:
        room.write(work / FAULT, first)
        if first.get("world_size", 1) > 1 and not first["mistake"]:
            print(first.get("traceback", ""), file=sys.stderr)
    else:
        for fault in known:
            print(f"rank {fault['rank']} lost its peers: {fault['error']}", file=sys.stderr)
    return first


def concluded(work: Path, what: str, status: int) -> int:
    """The exit status of a job whose processes ended with `status` and left no result. `what` names the job.

    It is an interruption where they were killed from outside, and else a fault of the program's own.
    """
    if status == 0:  # nobody has killed them
        record(work, EndedItself("its processes ended by themselves in the middle of their work"))
    fault = collect(work)
    if fault is None:
        return ending.interrupted(f"{what}: its processes were killed (status {status})")
    return ending.fault(f"{what} failed: {fault['error']}", remedy(fault))


def passes(fault: dict[str, Any]) -> bool:
    """Whether a fault is no fault of this attempt's own, and passes: another job was at work there."""
    return bool(fault["kind"] == Busy.__name__)


def remedy(fault: dict[str, Any]) -> str:
    """What the user can do about a recorded fault; '' where its own line says it."""
    if fault.get("remedy"):  # a run's frozen code may be older than this
        return str(fault["remedy"])
    return "" if fault["mistake"] else "the log has the traceback"


def begin(work: Path, what: str, attempt: int) -> int | None:
    """Begin a job in its folder: None, or the exit status where a retry (`attempt` > 1) would only repeat a fault.

    `what` names the job. What earlier attempts left is removed: the user has started it again.
    """
    if attempt > 1 and (fault := recorded(work)):
        return ending.fault(f"{what} failed before, not tried again: {fault['error']}")
    make_own(work)
    forget(work)
    return None


def recorded(work: Path) -> dict[str, Any] | None:
    """The fault that an earlier attempt left."""
    return next((fault for path in room.found(work, FAULT) if (fault := _read(path))), None)


def forget(work: Path) -> None:
    """A new attempt begins, by a name of its own; what earlier ones left is removed."""
    attempt_name.begin()
    room.forget(work, FAULT)
    for path in room.found(work, "fault-*.json"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OUTLIVED_SECONDS:
                path.unlink()
