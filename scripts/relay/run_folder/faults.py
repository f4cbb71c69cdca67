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

from relay.base import ending
from relay.base.ending import QUOTED, Ending
from relay.base.errors import Busy, EndedItself, PeerFailed, Told, UserError
from relay.base.files import read_json_or, write_json_or_say
from relay.base.printable import printable
from relay.chain.files import disk_refusal
from relay.chain.writers import make_own
from relay.run_folder import attempt_name, attempts, known_faults, peers, watchdog
from relay.run_folder.known_faults import Kind, Row

FAULT = "fault.json"
FAULT_BYTES = 2**16  # a recorded fault is smaller
MEMBERS = {"error": str, "rank": int, "time": int | float, "mistake": bool, "kind": str}
LOOK_SECONDS = 2.0  # how often a process looks for the others' faults
OUTLIVED_SECONDS = 3600.0  # a younger fault may be one of another job of the same run, whose processes look for it
GRACE_SECONDS = 5.0  # what it then has to come to an end, and to its own error, by itself
LOST = "PeerFailed: its process is gone, without a word"
WATCHDOG_TIMEOUT = "Watchdog caught collective operation timeout"  # torch's own words


def _world_size() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def guarded(work: Path, main: Callable[[], None]) -> None:
    """Run a process's main function; a fault goes into the work directory and to stderr, and ends the process.

    So does another rank's fault, and the end of one that was killed on the same node, within seconds.
    """
    rank = int(os.environ.get("RANK", "0"))
    if _world_size() > 1:
        peers.come(work, rank)
        threading.Thread(target=_end_with_peer, args=(work, rank), daemon=True).start()
    try:
        main()
        peers.go()
    except (KeyboardInterrupt, SystemExit):
        peers.go()
        raise
    except BaseException as error:  # torch's CheckpointException is no Exception
        with suppress(OSError):  # the log may be on the disk that is full
            record(work, error, rank)
            if known_faults.is_a(Kind.LOST_PEER, error) and (first := _first(_of_others(work, rank))):
                _tell_follower(rank, first)  # its own traceback would only hide the one that matters
            elif not isinstance(error, UserError) and (_world_size() == 1 or not (work / _file(rank)).exists()):
                traceback.print_exc()  # of several processes `collect` shows the first one's alone, once all have ended
            sys.stderr.flush()
        # At once: a collective's threads could keep the process, and so the whole job, waiting.
        os._exit(1)


def _end_with_peer(work: Path, rank: int) -> None:
    """End this process some seconds after another rank's fault, wherever it waits. It leaves word that it was alive."""
    while not (faults := _of_others(work, rank) or _killed(work)):
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    faults = _of_others(work, rank) or faults
    first = _first(faults) or faults[0]
    _tell_follower(rank, first)
    if not (work / _file(rank)).exists():  # its own error may just have been recorded
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        with suppress(OSError):
            record(work, PeerFailed(f"ended with rank {first['rank']}"), rank, "".join(traceback.format_stack(frame)))
    os._exit(1)


def _killed(work: Path) -> list[dict[str, Any]]:
    """The faults that ranks which were killed could not record."""
    return [{"rank": rank, "error": LOST, "time": time.time(), "mistake": False} for rank in peers.killed(work)]


def _tell_follower(rank: int, fault: dict[str, Any]) -> None:
    print(f"rank {rank} ends with rank {fault['rank']}: {fault['error']}", file=sys.stderr, flush=True)


def _of_others(work: Path, rank: int) -> list[dict[str, Any]]:
    """The faults that the other ranks of this attempt have recorded."""
    return [fault for fault in of_ranks(work) if fault["rank"] != rank]


def of_ranks(work: Path) -> list[dict[str, Any]]:
    """The faults that the ranks of this attempt have recorded, in the order of ranks."""
    faults = (_read(path) for path in work.glob(f"fault-{attempt_name.name()}-*.json"))
    return sorted((fault for fault in faults if fault), key=lambda fault: int(fault["rank"]))


def _read(path: Path) -> dict[str, Any] | None:
    """A recorded fault; None where it is gone, or damaged."""
    fault = read_json_or(path, None)
    whole = isinstance(fault, dict) and all(isinstance(fault.get(name), kind) for name, kind in MEMBERS.items())
    return _shown(fault) if whole else None


def _shown(fault: dict[str, Any]) -> dict[str, Any]:
    return {name: printable(value) if isinstance(value, str) else value for name, value in fault.items()}


def _first(faults: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The first fault that is more than the loss of a peer."""
    own = [fault for fault in faults if not is_a(Kind.LOST_PEER, fault)]
    return min(own, key=lambda fault: float(fault["time"]), default=None)


def row_of(fault: dict[str, Any]) -> Row | None:
    """What is known of such faults; None of a mistake, which speaks for itself, and of what nobody has met yet."""
    return None if fault["mistake"] else known_faults.look_up(str(fault.get("text", fault["error"])))


def is_a(kind: Kind, fault: dict[str, Any]) -> bool:
    """Whether a recorded fault is of that kind."""
    row = row_of(fault)
    return row is not None and row.kind == kind


def _file(rank: int) -> str:
    return f"fault-{attempt_name.name()}-{rank}.json"


def record(work: Path, error: BaseException, rank: int = 0, where: str = "") -> None:
    """Write an error down as this rank's fault; `where` it was, by default that of the error that is being handled."""
    write_json_or_say(work / _file(rank), _shown(_fault(error, rank, where or traceback.format_exc())))


def _fault(error: BaseException, rank: int, where: str) -> dict[str, Any]:
    # In one line, but for lines that it quotes: of a command's output.
    text, *quoted = str(error).split(QUOTED)
    line = QUOTED.join([" ".join(text.split()), *quoted])
    fault = {
        "error": line if isinstance(error, UserError) else f"{type(error).__name__}: {line}",
        "rank": rank,
        "world_size": _world_size(),
        "traceback": where,
        "time": time.time(),
        "node": os.environ.get("SLURMD_NODENAME", ""),
    }
    fault |= {
        "text": known_faults.text_of(error),
        "mistake": isinstance(error, UserError),
        "kind": type(error).__name__,
    }
    return fault | {"remedy": error.remedy if isinstance(error, Told) else ending.remedy_of(error)}


def _of_the_disk(work: Path) -> list[dict[str, Any]]:
    """That the folder is gone, or its disk takes no writing, as a fault: no process could leave its own there. Else
    nothing."""
    if not work.exists():
        return [_fault(UserError(attempts.gone(work)), 0, "")]
    error = disk_refusal(work, FAULT_BYTES)
    remedy = ending.remedy_of(error)
    return [_fault(Told(f"{work}: {error.strerror}", remedy), 0, "")] if error and remedy else []


def collect(work: Path, *, came_further: bool = False) -> dict[str, Any] | None:
    """The first fault of the ranks, as `fault.json` where a retry would only repeat it; None where there is none.

    Of several processes, its traceback goes to stderr: each has kept its own to itself.

    A rank that was killed leaves no word of its own: the others' errors about it are an interruption, worth a retry.
    They go to stderr, because nothing else says what happened. `came_further`: see `again`.
    """
    left = of_ranks(work)
    flights = watchdog.dumps(work)
    first = _first(left) or _first(_of_watchdog(flights)) or _first(_of_the_disk(work))
    if first and is_a(Kind.HANG, first) and not _all_alive(first, left, flights):
        first = None  # they waited for one that was killed
    _discard(work, f"fault-{attempt_name.name()}-*.json")
    peers.forget(work)
    if first is None:
        for fault in left:
            print(f"rank {fault['rank']} lost its peers: {fault['error']}", file=sys.stderr)
        return None
    if not again(first, came_further=came_further):  # else not kept: the retry may find another place, or this one free
        write_json_or_say(work / FAULT, first)
    if is_a(Kind.HANG, first):
        for fault in left:
            print(f"rank {fault['rank']} was here:\n{fault.get('traceback', '')}", file=sys.stderr)
    elif first.get("world_size", 1) > 1 and not first["mistake"]:
        print(first.get("traceback", ""), file=sys.stderr)
    return first


def _of_watchdog(flights: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """The faults of ranks that torch's NCCL watchdog has ended: they could record none themselves."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", "")
    same = {
        "world_size": max((each["world_size"] for each in flights.values()), default=sys.maxsize),  # nobody knows
        "mistake": False,
        "kind": "Watchdog",
    }
    same |= {"node": os.environ.get("SLURMD_NODENAME", "") if nodes == "1" else ""}
    words = [(rank, f"DistBackendError: {why}") for rank, why in watchdog.words(_log())]
    hung = watchdog.hang(flights)
    reasons = [(hung[0], f"{WATCHDOG_TIMEOUT}: {hung[1]}"), *words] if hung else words
    faults = [{"rank": rank, "error": why, "time": place, **same} for place, (rank, why) in enumerate(reasons)]
    # The others also wait for a rank whose GPU has failed.
    return [fault for fault in faults if is_a(Kind.HARDWARE, fault) or is_a(Kind.DEVICE, fault)] or faults


def _log() -> Path | None:
    """The job's log."""
    log = os.environ.get(ending.LOG)
    return Path(log) if log else None


def _all_alive(first: dict[str, Any], left: list[dict[str, Any]], flights: dict[int, dict[str, Any]]) -> bool:
    """Whether every rank has left a word, or a dump."""
    return len({fault["rank"] for fault in left} | set(flights)) >= first.get("world_size", 1)


def again(fault: dict[str, Any], *, came_further: bool = False) -> bool:
    """Whether the job is tried again after a fault: the table of `known_faults` says so.

    `came_further`: a training has saved something newer than what it began with. It then also goes on after a hang.
    """
    row = row_of(fault)
    if row is None:
        return bool(fault["kind"] == Busy.__name__)
    return row.kind in known_faults.AGAIN or (row.kind == Kind.HANG and came_further)


def outcome(fault: dict[str, Any] | None, what: str, status: int, *, came_further: bool = False) -> Ending:
    """How a job ended whose processes left this fault, and no result, and ended with `status`. `what` names the job."""
    if fault is None:
        message = f"its processes ended without a word (status {status}): killed, a lost node, out of memory?"
        return Ending(ending.INTERRUPTED, f"{what}: {message}")
    if fault["kind"] == Busy.__name__:
        return Ending(ending.INTERRUPTED, fault["error"])
    node = str(fault.get("node", ""))
    place = f" (rank {fault['rank']}{f' on {node}' if node else ''})"
    message = f"{what} failed: {fault['error']}{'' if fault['mistake'] else place}"  # a mistake is all ranks' alike
    if not again(fault, came_further=came_further):
        return Ending(ending.FAULT, message, remedy(fault))
    return Ending(ending.INTERRUPTED, message, remedy(fault), node=node if is_a(Kind.HARDWARE, fault) else "")


def concluded(work: Path, what: str, status: int, *, came_further: bool = False) -> int:
    """The exit status of a job whose processes ended with `status` and left no result; says and records the outcome."""
    if status == 0:  # nobody has killed them
        record(work, EndedItself("its processes ended by themselves in the middle of their work"))
    fault = collect(work, came_further=came_further)
    return ending.say(outcome(fault, what, status, came_further=came_further))


def remedy(fault: dict[str, Any]) -> str:
    """What the user can do about a recorded fault; '' where its own line says it."""
    if fault.get("remedy"):  # a run's frozen code may be older than this
        return str(fault["remedy"])
    row = row_of(fault)
    if row is not None and row.remedy:
        return row.remedy
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
    return _read(work / FAULT)


def forget(work: Path) -> None:
    """A new attempt begins, by a name of its own; what earlier ones left is removed."""
    attempt_name.begin()
    _discard(work, FAULT)
    watchdog.forget(work, _log())
    peers.forget(work)
    for path in work.glob("fault-*.json"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > OUTLIVED_SECONDS:
                path.unlink()


def _discard(work: Path, pattern: str) -> None:
    """Remove the files of a name, as far as that can be done: the disk may only be read."""
    with suppress(OSError):
        for path in work.glob(pattern):
            path.unlink()
