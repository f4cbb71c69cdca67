"""One process of a probe: does a batch of this size fit into the memory budget?

Started on every rank by the launcher, anew for each size: `python -m relay.launch.worker probe.process WORK --help`.
"""

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from relay import strategies
from relay.base import options
from relay.base.errors import NoRoom
from relay.base.files import write_json
from relay.probe.tries import STEPS
from relay.process import machine, system
from relay.process.devices import is_gpu
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder.faults import Fault
from relay.run_folder.known_faults import Kind
from relay.spec.job import Job
from relay.spec.run import Probe, Training
from relay.task.bound import BoundTask
from relay.task.data import feeder
from relay.task.split import chosen
from relay.training.evaluation import Evaluation


def budget_bytes(run: Probe, job: Job | None, device: torch.device) -> int:
    """What each process may hold: its share of the GPU's memory, or of the node's that the job has.

    That is what was declared; without it, what the control group or the machine has.
    """
    fraction = run.limits.memory_fraction
    if is_gpu(device):
        sharing = max(1, run.shape.processes_per_node // run.shape.devices_per_node)
        return int(fraction * torch.cuda.get_device_properties(device).total_memory / sharing)
    declared_mb = job.memory_mb if job else run.limits.node_memory_mb
    memory_mb = declared_mb or system.memory_bytes() // 2**20
    return int(fraction * memory_mb * 2**20 / run.shape.processes_per_node)


def limit_memory(ranks: Ranks, budget: int) -> None:
    """Let what does not fit fail as an error of this process, and not by the system killing it, or others.

    Raises NoRoom where there is no room for the process itself.
    """
    if is_gpu(ranks.device):
        for device in ranks.devices:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total), device)
        torch.cuda.set_device(ranks.device)  # which the above may have changed
        return
    held = system.held_bytes()
    if not held:  # not Linux: the peak is checked afterwards
        return
    if held["VmRSS"] > budget:
        raise NoRoom(f"no room: the process alone holds {held['VmRSS'] / 2**20:.0f} MB")
    # What may be written to, resident or not; the program's own code is not in it, so the peak is checked as well.
    limit, (_, most) = held["VmData"] + budget - held["VmRSS"], resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def refused(error: BaseException) -> bool:
    """Whether the error says that there was no memory."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, (RuntimeError, OSError)) and Fault.of(error).is_a(Kind.MEMORY)


@contextmanager
def without_room_told() -> Iterator[None]:
    """Raise NoRoom for what says that there was no memory."""
    try:
        yield
    except Exception as error:
        if not refused(error):
            raise
        raise NoRoom(f"no room: {str(error).splitlines()[0]}") from error


def train(run: Training, ranks: Ranks, dataset: Path) -> float:
    """A few steps and an evaluation, as a run makes them; returns samples per second, without the first step's.

    All ranks take part; memory is where a run has it: data, model, gradients, optimiser, and the batch.
    """
    task = BoundTask.of(run, dataset)
    strategy = strategies.load(run.strategy.name)(task, ranks, run.batch.global_batch_size, run.strategy.options)
    split, replica, ended = task.split("train"), strategy.replica, list[float]()
    reads = partial(feeder, run.feeding.loader, device=ranks.device, workers=run.feeding.data_workers)
    batches = reads(split=split).batches(
        chosen(len(split), run.batch.global_batch_size, run.seed, step, replica.index, replica.count)
        for step in range(STEPS)
    )

    strategy.set_learning_rate(task.learning_rate(0))
    for loss in strategy.train_steps(batches):
        loss.item()  # waits for the device
        ended.append(time.perf_counter())
    seconds = ended[-1] - ended[0]
    Evaluation(reads(split=task.split("test")), strategy, run.batch.global_batch_size).measure()
    return run.batch.global_batch_size * (STEPS - 1) / seconds


def parameters(task: BoundTask) -> int:
    """How many parameters the task's model has, whole."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in task.built().parameters())


def main(arguments: list[str]) -> None:
    """Parse the command line, train, and write what it took. Raises NoRoom where it does not fit."""
    given = options.parser(__doc__, "spec", "output", "dataset", prog="probe.process").parse_args(arguments)
    with joined(given.spec, strategies.service) as (run, ranks):
        assert isinstance(run, Probe)
        budget = budget_bytes(run, Job.read(given.spec), ranks.device)
        with without_room_told():
            limit_memory(ranks, budget)
            speed = train(run, ranks, given.dataset)
        peak, least = ranks.largest([machine.peak_memory_bytes(ranks.devices), -budget])
        if ranks.rank == 0:
            measured = {"peak_memory_bytes": int(peak), "budget_bytes": int(-least), "samples_per_second": speed}
            measured["parameters"] = parameters(BoundTask.of(run))
            write_json(given.output, measured)
