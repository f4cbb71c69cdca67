"""Whether a job's processes were killed for using more main memory than they had: by Slurm, or by the kernel."""

from __future__ import annotations

import re
from pathlib import Path

from relay.base.files import end_of

#: What a job's log says of it, when the kernel has counted a process that it killed.
TOLD = "killed for memory: the kernel has killed {count} of this job's processes (oom_kill)"
# Words of Slurm's status, of its daemon and of srun, and this project's own. Not those of torch on a GPU's memory.
_WORDS = re.compile(
    r"OUT_OF_MEMORY|oom[-_]kill|oom_killer|: Out Of Memory|[Ee]xceeded (?:\w+ )?memory limit|being killed.*memory limit"
)
_LAST_BYTES = 1 << 16


def told(*texts: str) -> bool:
    """Whether one of these says that a process was killed for memory."""
    return any(_WORDS.search(text) for text in texts)


def told_in(log: Path | None) -> bool:
    """Whether a job's log says it."""
    return told(end_of(log, _LAST_BYTES))


def kills(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many processes of this one's control group the kernel has killed for memory so far; None where not told.

    Processes that this one has started are in the same group, or in one below it.
    """
    try:
        lines = [line.split(":", 2) for line in groups.read_text(encoding="utf-8").splitlines()]
    except OSError:  # not Linux
        return None
    for _, controllers, path in lines:
        if controllers not in ("", "memory"):
            continue
        place, name = (root, "memory.events") if controllers == "" else (root / "memory", "memory.oom_control")
        try:
            text = (place / path.lstrip("/") / name).read_text(encoding="utf-8")
        except OSError:
            continue
        if found := re.search(r"^oom_kill (\d+)$", text, re.MULTILINE):
            return int(found[1])
    return None
