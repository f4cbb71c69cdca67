"""A run under DeepSpeed that is told to stop, and then loses a process, goes on from its checkpoints bit for bit."""

from __future__ import annotations

import pytest

import debian_packages
from chain_results import assert_same, result
from chain_runs import Bench, Chain
from stacks import provide

pytest_plugins = ["chain_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

STEPS = 7  # an epoch has more
#: After so many steps of an attempt, rank 1 gets a signal.
CUTS = ((3, "SIGTERM"), (2, "SIGKILL"))
ENDED = """
import os
import signal
from pathlib import Path

from relay import strategies
from relay.training import agreement

agreement.AGREE_SECONDS = 0.0  # a checkpoint at every step that has none to wait for
Base = strategies.load({base!r})


class Ended(Base):
    requirements = Base.requirements

    def train_steps(self, batches):
        flags = [Path({folder!r}) / name for _, name in {cuts}]
        cuts = [cut for cut, flag in zip({cuts}, flags) if not flag.exists()]
        for step, loss in enumerate(super().train_steps(batches), 1):
            if cuts and step == cuts[0][0] and self.ranks.rank == 1:
                (Path({folder!r}) / cuts[0][1]).touch()
                os.kill(os.getpid(), signal.Signals[cuts[0][1]])
            yield loss
"""


@pytest.fixture(scope="module", autouse=True)
def deepspeed() -> None:
    """The tests' own forks see the stack's packages."""
    debian_packages.require()
    provide("deepspeed")


def begun(bench: Bench, base: str, cuts: tuple[tuple[int, str], ...] = ()) -> Chain:
    """A run on two processes. Each attempt ends with the next of `cuts`, as long as there are any."""
    name = f"{base}_ended_{len(cuts)}"
    path = bench.folder / "strategies" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(ENDED.format(base=base, folder=str(path.parent), cuts=cuts))
    chosen = {"strategy": name, "strategy_file": str(path), "stack": "deepspeed", "launcher": "torchrun"}
    return bench.chain(name, **chosen, devices_per_node=2, total_steps=STEPS)


@pytest.mark.long  # tests/test_deepspeed_checkpoints.py and tests/test_lightning.py have the parts
@pytest.mark.parametrize("strategy", ["zero3", "lightning_zero3"])
def test_it_goes_on_bit_for_bit(bench: Bench, strategy: str) -> None:
    """Dropout draws masks: a step that was replayed, or a batch that was skipped, would show."""
    cut = begun(bench, strategy, CUTS)
    told = cut.forked()
    assert told.status == 75, told.errors
    assert f"stopped at step {CUTS[0][0]} of {STEPS} (SIGTERM)" in told.errors
    killed = cut.forked(attempt=2)
    assert killed.status == 75, killed.errors
    assert "status -9" in killed.errors
    assert not (cut.work / "fault.json").exists()
    ended = cut.forked(attempt=3)
    assert ended.status == 0, ended.errors
    first, second, third = cut.started_at()
    assert (first, second) == (0, CUTS[0][0])
    assert CUTS[0][0] <= third <= CUTS[0][0] + CUTS[1][0]
    # Under Lightning the same engine trains: also the same numbers.
    assert_same(result(cut), result(begun(bench, "zero3").train(forked=True)))
