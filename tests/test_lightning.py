"""Lightning's Trainer as a strategy: its gate, planted faults, and its chain of segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gate_runs
from chain_results import assert_same, result
from chain_runs import Bench, Chain
from gate_runs import FEW_STEPS, Gates
from relay import strategies
from stacks import provide

pytest_plugins = ["chain_runs"]
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lightning", "one_thread")]


@pytest.fixture(scope="module")
def lightning() -> Path:
    """The stack's interpreter; the tests' own forks see its packages, too."""
    return provide("lightning")


# The gate

FAULTS = {
    "clips": "def new_trainer(self, *callbacks):\n        made = super().new_trainer(*callbacks)\n"
    "        made.gradient_clip_val = 1.0\n        return made",
    "accumulates": "def new_trainer(self, *callbacks):\n        made = super().new_trainer(*callbacks)\n"
    "        made.accumulate_grad_batches = 2\n        return made",
    "samples": """def new_trainer(self, *callbacks):
        # What Trainer(use_distributed_sampler=True) does to a loader of the whole dataset: a sampler of its own.
        from torch.utils.data import DataLoader, DistributedSampler
        made = super().new_trainer(*callbacks)
        fit = made.fit

        def sampled(module, train_dataloaders):
            batches = list(train_dataloaders.batches)
            sampler = DistributedSampler(batches, self.ranks.world_size, self.ranks.rank, shuffle=True)
            fit(module, train_dataloaders=DataLoader(batches, None, sampler=sampler))

        made.fit = sampled
        return made""",
}
SEEN_BY = {"clips": "scaled: parameters", "accumulates": "algorithm: parameters", "samples": "samples reached the loss"}
WRONG = '''"""Wrong: {name}."""
from relay.spec.requirements import Requirements
from relay.strategies.lightning_ddp import LightningDDP


class Wrong(LightningDDP):
    """Wrong."""

    requirements = Requirements(stack="lightning", least_devices=2, divides=("samples",), options={options})

    {fault}
'''


def test_the_gate_finds_it_equivalent(gates: Gates) -> None:
    verdict = gates.verdict("lightning_ddp", 2, steps=20)
    assert verdict["equivalent"], verdict["problems"]


@pytest.mark.parametrize(
    "fault", ["samples", *(pytest.param(fault, marks=pytest.mark.long) for fault in ("clips", "accumulates"))]
)
def test_the_gate_sees_a_trainer_that(
    gates: Gates, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = strategies.load("lightning_ddp").requirements.options
    (tmp_path / f"trainer_{fault}.py").write_text(WRONG.format(name=fault, options=dict(options), fault=FAULTS[fault]))
    monkeypatch.setattr(gate_runs, "FOLDER", tmp_path)
    verdict = gates.verdict(f"trainer_{fault}", 2, steps=FEW_STEPS)
    assert not verdict["equivalent"]
    assert any(SEEN_BY[fault] in problem for problem in verdict["problems"]), verdict["problems"]


# The chain of segments

STEPS, CUT = 8, 5  # an epoch has more
STOPPED = """
from pathlib import Path
import os
import signal
from relay.strategies import lightning_ddp
from relay.training import agreement

agreement.AGREE_SECONDS = 0.0  # a checkpoint at every step that has none to wait for


class Made(lightning_ddp.LightningDDP):
    requirements = lightning_ddp.LightningDDP.requirements

    def train_steps(self, batches):
        for step, loss in enumerate(super().train_steps(batches), 1):
            if step == {cut} and self.ranks.rank == 1 and not Path({flag!r}).exists():
                Path({flag!r}).touch()
                os.kill(os.getpid(), signal.{signal})
            yield loss
"""


def begun(bench: Bench, name: str, number: str = "SIG_IGN", *, cut: int = 0, **values: Any) -> Chain:
    """A run on two processes; the second of them gets a signal once, when it has trained `cut` steps."""
    path = bench.folder / "strategies" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(STOPPED.format(cut=cut, signal=number, flag=str(bench.folder / f"{name} stopped")))
    chosen = {"strategy": name, "strategy_file": str(path), "launcher": "torchrun", "devices_per_node": 2}
    return bench.chain(name, **(chosen | {"total_steps": STEPS} | values))


@pytest.mark.long
def test_cut_short_it_ends_bit_for_bit_as_uncut(bench: Bench) -> None:
    """Dropout draws masks: a step that was replayed, or a batch that was skipped, would show."""
    uncut = result(begun(bench, "uncut").train(forked=True))
    for number, told in (("SIGTERM", f"stopped at step {CUT} of {STEPS}"), ("SIGKILL", "status -9")):
        cut = begun(bench, number.lower(), number, cut=CUT)
        ended = cut.forked()
        assert ended.status == 75, ended.errors
        assert told in ended.errors
        ended = cut.forked(attempt=2)
        assert ended.status == 0, ended.errors
        assert cut.started_at()[0] == 0
        assert 0 < cut.started_at()[1] <= CUT
        assert_same(result(cut), uncut)


def test_its_own_checkpoint_lies_beside_the_runs(bench: Bench) -> None:
    options = dict(strategies.load("lightning_ddp").requirements.options) | {"model_checkpoint": True}
    chain = begun(bench, "kept", options=options).train(forked=True)
    weights = torch.load(chain.work / f"step-{STEPS}" / "strategy" / "lightning.ckpt", weights_only=True)["state_dict"]
    ours = result(chain)["state"]["model"]
    assert set(weights) == {f"network.{name}" for name in ours}
    assert_same({name: weights[f"network.{name}"] for name in ours}, ours)
