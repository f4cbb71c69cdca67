"""What torch's NCCL watchdog leaves of a process that it has ended: Flight Recorder's dump, and words in the job's log.

Collectives of NCCL run on the GPU, and no error of Python's ends one that waits. After the group's timeout a thread of
torch's has every rank write down its last collectives, and ends the process by SIGABRT
(https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html). So it does where the GPU itself fails.
"""

import os
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from relay.base.files import end_of
from relay.run_folder import alive
from relay.spec.versions import installed, release

ENTRIES = "2000"  # collectives that are kept of each rank; torch's own default from 2.10 on
_RENAMED = (2, 9)  # the first torch that surely knows the new names; later ones warn of the old ones
_LAST_BYTES = 1 << 20
_HELD_BYTES: dict[Path, int] = {}  # what a job's log held when this attempt began
DUMPS = "flight-*"  # of whatever attempt
_NEARLY = 0.9  # of the timeout: the file's time is that of its server, whose clock may be another
_WORDS = re.compile(
    r"Rank (\d+)\] \w+(?: group)? watchdog thread terminated with exception: (.+?)"
    r"\n(?:\n|Exception raised|frame #|CUDA kernel errors|Search for)",
    re.DOTALL,
)


def prepare(work: Path) -> None:
    """Have this process, which has not loaded torch yet, write its dump into the work directory. The user's own win."""
    torch = installed("torch")
    new = torch is None or release(torch)[:2] >= _RENAMED  # without any, its import will say so
    size, file = (
        ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
        if new
        else ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    )
    ranks = os.environ.get("WORLD_SIZE", "1")
    values = {size: ENTRIES, file: f"{_beginning(work)}{ranks}-", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    for name, value in values.items():
        os.environ.setdefault(name, value)


def _beginning(work: Path) -> Path:
    """How the paths of this attempt's dumps begin. The number of ranks follows, and torch adds the rank."""
    return work.absolute() / f"flight-{alive.attempt()}-"


class _Plain(pickle.Unpickler):
    """Reads numbers, texts, lists and dictionaries, of which a dump is made, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def dumps(work: Path) -> dict[int, dict[str, Any]]:
    """The dumps of this attempt by rank: the `entries`, when they were `written`, and how many ranks there were.

    Damaged ones are left out.
    """
    by_rank = {}
    beginning = _beginning(work)
    for path in beginning.parent.glob(f"{beginning.name}*"):
        try:
            ranks, rank = path.name.removeprefix(beginning.name).split("-")
            with path.open("rb") as stream:
                dump = _Plain(stream).load()
            by_rank[int(rank)] = {
                "written": path.stat().st_mtime,
                "world_size": int(ranks),
                "entries": [dict(entry) for entry in dump["entries"]],
            }
        except Exception:  # cut off, or of a torch that writes something else: pickle raises anything
            continue
    return by_rank


def forget(log: Path | None) -> None:
    """What the job's log holds by now is of an earlier attempt."""
    if log:
        _HELD_BYTES[log] = log.stat().st_size if log.is_file() else 0


def hang(by_rank: Mapping[int, Mapping[str, Any]]) -> tuple[int, str] | None:
    """The first rank whose collective was over its time, and what of it is known; None where none was.

    A dump alone does not say so: a process also writes one where a peer or its GPU has failed.
    """
    late = {rank: entry for rank, dump in sorted(by_rank.items()) if (entry := _overdue(dump))}
    if not late:
        return None
    rank, entry = min(late.items(), key=lambda item: int(item[1]["time_created_ns"]))
    number, name = entry["process_group"]
    group = number if name in ("", "undefined") else name
    waited = f"rank {rank} waited {entry['timeout_ms'] / 1000:g} s in {_named(entry)} of group {group}"
    waited += f", {_sizes(entry)}"
    others = []
    for other, dump in sorted(by_rank.items()):
        came = late.get(other) or _last(dump, entry["process_group"])
        if came is None:
            others.append(f"rank {other} had come to none of that group")
        elif _named(came) != _named(entry):
            others.append(f"rank {other} had come to {_named(came)}")
    return rank, "; ".join([waited, *others])


def _named(entry: Mapping[str, Any]) -> str:
    """A collective, or a transfer between two ranks, by name and number: nccl:all_reduce number 17."""
    return f"{entry['profiling_name']} number {entry['p2p_seq_id' if entry.get('is_p2p') else 'collective_seq_id']}"


def _overdue(dump: Mapping[str, Any]) -> dict[str, Any] | None:
    """The first collective that had not ended when its timeout was over.

    Of transfers in a batch the batch is judged: NCCL times the batch alone, and its transfers never end.
    """
    batches = {_batch(entry) for entry in dump["entries"] if str(entry["profiling_name"]).endswith(":coalesced")}
    for entry in dump["entries"]:
        if entry.get("is_p2p") and _batch(entry) in batches and not entry["profiling_name"].endswith(":coalesced"):
            continue
        waited_ms = dump["written"] * 1e3 - int(entry["time_created_ns"]) / 1e6
        ended = entry["retired"] or entry["state"] == "completed"
        if not ended and waited_ms >= _NEARLY * (entry["timeout_ms"] or float("inf")):
            return dict(entry)
    return None


def _batch(entry: Mapping[str, Any]) -> tuple[Any, Any]:
    return tuple(entry["process_group"]), entry["p2p_seq_id"]


def _last(dump: Mapping[str, Any], group: Any) -> Mapping[str, Any] | None:
    """The last collective of a group that a rank has begun."""
    return next((entry for entry in reversed(dump["entries"]) if entry["process_group"] == group), None)


def _sizes(entry: Mapping[str, Any]) -> str:
    """The shapes and types of what was sent: Float [3]."""
    pairs = zip(entry["input_dtypes"], entry["input_sizes"], strict=False)
    return ", ".join(f"{kind} {list(size)}" for kind, size in pairs) or "nothing sent"


def words(log: Path | None) -> list[tuple[int, str]]:
    """The ranks that torch's watchdog has ended, and why, in its own words in the job's log; the first one first."""
    return [(int(rank), " ".join(why.split())) for rank, why in _WORDS.findall(of_attempt(log) + "\n\n")]


def of_attempt(log: Path | None) -> str:
    """The last that has come to the job's log in this attempt."""
    return end_of(log, _LAST_BYTES, after=_HELD_BYTES.get(log, 0) if log else 0)
