"""What inter-op threads are worth: training steps of a network with branches, with two of them over one.

The branches of a layer do not depend on each other. In eager mode Python calls one operation after the other. A
TorchScript program may start them side by side (`torch.jit.fork`); then it matters how many inter-op threads there are.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from common import report
from torch import nn

BRANCHES, CHANNELS, SIZE, BATCH = 4, 16, 32, 32


def branch(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Two convolutions with the same weights; (N, C, H, W) to the same shape."""
    return F.relu(F.conv2d(F.relu(F.conv2d(inputs, weight, padding=1)), weight, padding=1))


class Branches(nn.Module):
    """Branches that compute the same inputs, and whose outputs are added up."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(CHANNELS, CHANNELS, 3, 3) / 12 for _ in range(BRANCHES))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, C, H, W) to the same shape."""
        return torch.stack([branch(inputs, weight) for weight in self.weights]).sum(0)


class Forked(Branches):
    """The same as a TorchScript program, which forks the branches."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated
            self.scripted = torch.jit.script(forked)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.scripted(inputs, list(self.weights))
        return outputs


def forked(inputs: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """All branches, begun at the same time."""
    begun = [torch.jit.fork(branch, inputs, weight) for weight in weights]
    return torch.stack([torch.jit.wait(each) for each in begun]).sum(0)


def timed(network: str, part: str, interop_threads: int, steps: int) -> tuple[float, float]:
    """Steps per second, and the share of their CPU time that other threads than the first spent.

    `part` is "forward", without gradients, or "step", with SGD. Called in a process of its own, since a process can set
    its inter-op threads once.
    """
    torch.set_num_threads(1)
    torch.set_num_interop_threads(interop_threads)
    torch.manual_seed(0)
    layer = Forked() if network == "forked" else Branches()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    inputs = torch.randn(BATCH, CHANNELS, SIZE, SIZE)

    def work() -> None:
        if part == "forward":
            with torch.no_grad():
                layer(inputs)
            return
        optimizer.zero_grad()
        layer(inputs).square().mean().backward()
        optimizer.step()

    for _ in range(5):  # TorchScript compiles in the first ones
        work()
    began, first, all_ = time.perf_counter(), time.thread_time(), time.process_time()
    for _ in range(steps):
        work()
    seconds, first, all_ = time.perf_counter() - began, time.thread_time() - first, time.process_time() - all_
    return steps / seconds, 1 - first / all_


def main() -> None:
    """Parse the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=["eager", "forked"], default="eager", help="default: %(default)s")
    parser.add_argument("--part", choices=["forward", "step"], default="step", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    ratios, shares = [], []
    for _ in range(given.rounds):
        speeds = []
        for threads in (1, 2):
            with get_context("spawn").Pool(1) as process:
                speed, share = process.apply(timed, (given.network, given.part, threads, given.steps))
            speeds.append(speed)
        ratios.append(speeds[1] / speeds[0])
        shares.append(share)
    report(f"two inter-op threads over one, {given.network}, {given.part}s per second", ratios,
           cpu_time_of_other_threads=round(statistics.median(shares), 3))  # fmt: skip


if __name__ == "__main__":
    main()
