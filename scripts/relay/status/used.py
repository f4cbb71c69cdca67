"""What a training uses of its nodes just now: in a line for each, what htop and nvidia-smi would show there."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from relay.base.clock import duration
from relay.run_folder import samples
from relay.run_folder.samples import Look, Node, mean

RECENT_SECONDS = 60.0  # what is shown is a mean over so long
IDLE_SECONDS, IDLE = 120.0, 0.1  # after how long it is told that GPUs are busy for less than this part of the time


def newest(work: Path) -> list[Node]:
    """The looks at each node of the attempt that trains; none where the newest one has not looked for a while."""
    numbers = {int(path.name.split("-")[1]) for path in (work / samples.FOLDER).glob("attempt-*-*.jsonl")}
    nodes = samples.read(work, max(numbers)) if numbers else []
    least = time.time() - RECENT_SECONDS
    return [node for node in nodes if node.looks and node.looks[-1].time > least - node.seconds]


def lines(nodes: Sequence[Node]) -> Iterator[str]:
    """For each node: its name, CPUs in use of those asked for, memory, and how busy and full the GPUs are."""
    for node in nodes:
        recent = _within(node.looks, RECENT_SECONDS)
        first, last = recent[0], recent[-1]
        facts = []
        if last.time > first.time:
            cpus = (last.cpu_seconds - first.cpu_seconds) / (last.time - first.time)
            facts.append(f"{cpus:.1f} of {node.cpus} CPUs")
        facts.append(f"{last.resident_bytes / 1e9:.1f} GB of memory")
        busy, full = _busy(recent), last.readings("memory_bytes")
        facts += [] if busy is None else [f"GPUs {busy:.0%} busy"]
        facts += [f"{max(full) / 1e9:.1f} GB of GPU memory"] if full else []
        yield f"{node.host}: {', '.join(facts)}"


def idle(nodes: Sequence[Node]) -> str:
    """That the GPUs have done next to nothing for minutes; '' where they work, or where there are none."""
    looks = [_within(node.looks, IDLE_SECONDS) for node in nodes]
    long = [each for each in looks if each[-1].time - each[0].time > 0.8 * IDLE_SECONDS]
    busy = [share for each in long if (share := _busy(each)) is not None]
    if not busy or fmean(busy) >= IDLE:
        return ""
    cause = "they wait for something else, mostly the data: more data_workers, or loader resident"
    return f"its GPUs were busy for {fmean(busy):.0%} of the last {duration(IDLE_SECONDS)}; {cause}"


def _within(looks: Sequence[Look], seconds: float) -> list[Look]:
    return [look for look in looks if look.time >= looks[-1].time - seconds]


def _busy(looks: Sequence[Look]) -> float | None:
    """The part of the time in which the GPUs worked; None where nobody knows."""
    return mean([share for look in looks for share in look.readings("utilisation")])
