"""The product's training loop beside simpler ones on the same task, in turns: its speed over theirs.

--against bare    ten lines that fetch the same batches, with the same model and optimizer: what do records, agreement,
                  timing and the looks at the machine cost?
--against step    the training step alone, on one batch in memory: the limit of what any loop can reach
--against graph   the same step captured as a CUDA graph and replayed: the limit on a GPU
--against plain   torch's own modules in ten lines, at the best of its settings: eager, with a fused optimizer, and
                  compiled; the product, too, at the better of as it is and compiled
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import DATA, report, short_run

from relay.process import machine
from relay.process.ranks import Ranks
from relay.run_folder.places import dataset_folder
from relay.spec.run import Run, changed
from relay.strategies._captured import prepare
from relay.task.bound import BoundTask
from relay.task.data import feeder
from relay.task.split import Chosen, chosen
from relay.training.observer import monitored
from relay.training.timing import Block
from relay.training.trainer import Trainer


class Simple:
    """A loop of ten lines. `fused` and `compiled` are of its optimizer and its model; None: as the product has them."""

    def __init__(
        self,
        run: Run,
        dataset: Path,
        device: torch.device,
        *,
        one_batch: bool,
        captured: bool = False,
        fused: bool = False,
        compiled: bool = False,
    ) -> None:
        task = self.task = BoundTask.of(run, dataset)
        self.run = run
        self.device = device
        self.model = task.model().to(device)
        self.optimizer = task.optimizer(self.model.parameters())
        if fused:
            for group in self.optimizer.param_groups:
                group |= {"fused": True, "foreach": False}
        if compiled and not run.computation.compile:
            self.model.compile()
        self.data = feeder(run.feeding.loader, task.split("train"), device, run.feeding.data_workers)
        self.one = next(self.data.batches([self._chosen(0)])) if one_batch else None
        self.graph = self._captured() if captured else None

    def _chosen(self, step: int) -> Chosen:
        return chosen(self.run.dataset.train_count, self.run.batch.global_batch_size, self.run.seed, step)

    def seconds_of_a_step(self, steps: int) -> float:
        """The mean over so many steps, after some that warm up."""
        warm = self.run.length.warmup_steps
        steps += warm
        of = (self.one for _ in range(steps)) if self.one else self.data.batches(map(self._chosen, range(steps)))
        for number, batch in enumerate(of):
            if number == warm:
                started = self._now()
            self.graph.replay() if self.graph else self._step(batch)
        return (self._now() - started) / (steps - warm)

    def _step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.task.loss(self.task.outputs(self.model, batch), batch).backward()
        self.optimizer.step()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph, as torch's notes on CUDA graphs say: warmed up on a stream of its own."""
        prepare(self.optimizer)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step(self.one)
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(self.one)
        return graph

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def product(run: Run, ranks: Ranks, dataset: Path, work: Path) -> float:
    """Seconds of a step in the product's loop, with all records and looks.

    Its warm-up, the steps that are observed and the save at its end are left out.
    """
    work.mkdir(exist_ok=True)
    timed: list[Block] = []
    with monitored(run, ranks, work, 1), redirect_stdout(sys.stderr):  # stdout is for the figures alone
        given = argparse.Namespace(dataset=dataset, work=work, first=0, last=run.length.total_steps, attempt=1)
        trainer = Trainer(run, ranks, given, {})
        trainer.recorder.flush = lambda blocks, paused: timed.extend(blocks)  # type: ignore[method-assign]
        trainer.train()
    last = run.length.total_steps - run.length.observed_steps
    timed = [block for block in timed if run.length.warmup_steps <= block.first and block.last <= last]
    return sum(block.seconds for block in timed) / sum(block.last - block.first for block in timed)


def best(loops: dict[str, Callable[[], float]]) -> tuple[str, Callable[[], float]]:
    """The name of the quickest of several loops, each tried twice, and the loop."""
    name = min(loops, key=lambda each: min(loops[each](), loops[each]()))
    return name, loops[name]


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", choices=("bare", "step", "graph", "plain"), default="bare")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--task", default="lenet-synthetic")
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with archives of public data")
    parser.add_argument("--loader", choices=("resident", "dataloader"), default="resident")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.against == "graph" and given.device != "cuda":
        parser.error("--against graph: needs --device cuda")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.exit(1, "left out: torch sees no GPU here\n")
    machine.set_threads(given.threads, 1)
    machine.set_precision("fp32")
    if given.device == "cpu":
        machine.keep_freed_memory()
    ranks = Ranks.join(given.device, "gloo")
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        comparison = {
            "strategy": "cpu" if given.device == "cpu" else "single_gpu", "cpus_per_task": given.threads,
            "threads": given.threads, "global_batch_size": given.global_batch_size,
            "loader": given.loader, "data_workers": given.workers,
        }  # fmt: skip
        config = {"task": given.task, "device": given.device, "comparisons": [comparison]}
        run = short_run(config, given.steps + 10, folder, given.data)
        run = changed(run, channels_last=given.channels_last, observed_steps=0)
        dataset = dataset_folder(folder, run.dataset)

        def simple(**how: bool) -> Callable[[], float]:
            loop = Simple(run, dataset, ranks.device, **how)
            return lambda: loop.seconds_of_a_step(given.steps)

        def ours(run: Run = run) -> float:
            return product(run, ranks, dataset, Path(tempfile.mkdtemp(dir=folder)))

        one_batch = given.against in ("step", "graph")
        others = {given.against: simple(one_batch=one_batch, captured=given.against == "graph")}
        products: dict[str, Callable[[], float]] = {"as it is": ours}
        if given.against == "plain":
            others |= {"fused": simple(one_batch=False, fused=True), "compiled": simple(one_batch=False, compiled=True)}
            compiled = changed(run, compile=True)
            products["compiled"] = partial(ours, compiled)
        (other_name, other), (name, quickest) = best(others), best(products)
        ratios, seconds = [], []
        for _ in range(given.rounds):
            seconds.append(other())
            ratios.append(seconds[-1] / quickest())
    speed = run.batch.global_batch_size / statistics.median(seconds)
    report(f"product's loop over {given.against} loop, samples/s", ratios, other_samples_per_second=round(speed),
           other=other_name, product=name, task=given.task, loader=given.loader, workers=given.workers,
           channels_last=given.channels_last, global_batch_size=run.batch.global_batch_size,
           threads=given.threads)  # fmt: skip
    ranks.leave()


if __name__ == "__main__":
    main()
