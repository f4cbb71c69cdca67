"""What a step's time goes to on GPUs: from what torch's profiler saw of their kernels.

Communication is exposed where kernels of NCCL run, or data moves between GPUs, and no other kernel does. Its
reckoning is tested on made-up traces.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.autograd import DeviceType

from relay.process.devices import synchronise

Interval = tuple[float, float]
Span = tuple[str, Interval]  # of which kind it is: window, beside, wait, sent, kernel, update
PARTS = ("data", "compute", "communication", "optimizer", "idle")
SENT = ("nccl", "memcpy ptop", "memcpy p2p")
# What CPUs send for GPUs whose processes share one, or that have no NCCL.
SENT_BY_CPUS = ("gloo:", "mpi:")
UPDATE = "Optimizer.step#"
# The kernels of fused and of grouped updates: a replayed step has no annotations.
UPDATES = "multi_tensor_apply_kernel"


@dataclass(frozen=True)
class Traced:
    """Something that the profiler saw: its name, whether on a device (and which), and when (seconds)."""

    name: str
    device: int | None
    begin: float
    end: float

    @property
    def interval(self) -> Interval:
        return self.begin, self.end


def parts(
    traced: Sequence[Traced], waits: Sequence[Interval], window: Interval, beside: Sequence[Interval] = ()
) -> dict[str, float]:
    """The seconds of each part of a window, the mean over its devices; they add up to it.

    `waits` are the times in which the process waited for data. `beside` are times in the window that belong to no step:
    evaluations and saves. They are left out.
    """
    on_cpu = [each for each in traced if each.device is None]
    same = [("window", window), *(("beside", each) for each in beside), *(("wait", each) for each in waits)]
    same += [("sent", each.interval) for each in on_cpu if each.name.startswith(SENT_BY_CPUS)]
    devices = sorted({each.device for each in traced if each.device is not None}) or [0]
    names = {each.name for each in on_cpu}
    by_device = [_seconds([*same, *_on_device([each for each in traced if each.device == d], names)]) for d in devices]
    return {part: sum(each[part] for each in by_device) / len(by_device) for part in PARTS}


def _on_device(traced: Sequence[Traced], on_cpu: set[str]) -> Iterator[Span]:
    # The profiler shows annotations on the device too, over the kernels that were queued within: no kernels.
    kernels = [each for each in traced if each.name not in on_cpu]
    updates = [each for each in traced if each.name.startswith(UPDATE)]
    for each in kernels:
        yield "sent" if each.name.lower().startswith(SENT) else "kernel", each.interval
    for each in updates or kernels:
        if updates or UPDATES in each.name:
            yield "update", each.interval


def _seconds(spans: Iterable[Span]) -> dict[str, float]:
    """The seconds of each part: from each moment at which a span begins or ends to the next one."""
    forwards = [(kind, begin, end) for kind, (begin, end) in spans if begin < end]  # a clock may have been set back
    edges = sorted(edge for kind, begin, end in forwards for edge in ((begin, kind, 1), (end, kind, -1)))
    seconds, under_way = dict.fromkeys(PARTS, 0.0), Counter[str]()
    for (at, kind, change), (until, *_) in pairwise(edges):
        under_way[kind] += change
        if under_way["window"] and not under_way["beside"]:
            seconds[_part(under_way)] += until - at
    return seconds


def _part(under_way: Mapping[str, int]) -> str:
    """To which part a moment belongs, by how many spans of each kind it is in."""
    if under_way["kernel"]:
        return "optimizer" if under_way["update"] else "compute"
    if under_way["sent"]:
        return "communication"
    return "data" if under_way["wait"] else "idle"


class OnGpu:
    """Observes steps on GPUs. `fetched` and `stepped` are called in each of them."""

    method = "torch.profiler"

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices, self._waits, self._beside = list(dict.fromkeys(devices)), list[Interval](), list[Interval]()
        self._profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA], **_all_threads()
        )
        self._synchronise()
        self._profiler.start()
        self._began = time.time()

    def fetched(self, waited: float) -> None:
        """A batch has come, for which the thread that calls this has waited so many seconds."""
        now = time.time()
        self._waits.append((now - waited, now))

    def stepped(self) -> None:
        """The step with that batch is queued."""

    @contextmanager
    def beside(self) -> Iterator[None]:
        """What is done while this lasts belongs to no step. What was queued before it still does."""
        self._synchronise()
        began = time.time()
        yield
        self._synchronise()
        self._beside.append((began, time.time()))

    def end(self) -> dict[str, float]:
        """The seconds of each part."""
        self._synchronise()
        ended = time.time()
        self._profiler.stop()
        results: Any = self._profiler.profiler.kineto_results  # type: ignore[union-attr]  # it has run
        zero = results.trace_start_ns() / 1e9
        traced = [_traced(event, zero) for event in self._profiler.events() or ()]
        return parts(traced, self._waits, (self._began, ended), self._beside)

    def _synchronise(self) -> None:
        for device in self.devices:
            synchronise(device)


def _traced(event: Any, zero: float) -> Traced:
    on_device = event.device_type == DeviceType.CUDA
    span = event.time_range
    return Traced(event.name, event.device_index if on_device else None, zero + span.start / 1e6, zero + span.end / 1e6)


def _all_threads() -> dict[str, Any]:
    """An argument of the profiler by which it sees all threads: Lightning trains in one of its own."""
    try:
        from torch._C._profiler import _ExperimentalConfig

        return {"experimental_config": _ExperimentalConfig(profile_all_threads=True)}
    except (ImportError, TypeError):  # an older version
        return {}
