"""A strategy of a library, of which one process gets a signal in the middle of its training."""

from __future__ import annotations

from typing import Any

from chain_runs import Bench, Chain

STEPS, CUT = 8, 5  # an epoch has more
STOPPED = """
from pathlib import Path
import os
import signal
import time
from relay.strategies import {module}
from relay.chain import peers

peers.AGREE_SECONDS = 0.0  # a checkpoint at every step that has none to wait for


class Made({module}.{kind}):
    requirements = {module}.{kind}.requirements

    def train_steps(self, batches):
        for step, loss in enumerate(super().train_steps(batches), 1):
            if step == {cut} and self.ranks.rank == 1 and not Path({flag!r}).exists():
                Path({flag!r}).touch()
                os.kill(os.getpid(), signal.{signal})
            time.sleep({pause})
            yield loss
"""


def begun(
    bench: Bench, kind: str, name: str, number: str = "SIG_IGN", *, cut: int = 0, pause: float = 0.0, **values: Any
) -> Chain:
    """A run on two processes of a strategy, module.Class; the second process gets a signal once, after `cut` steps."""
    module, kind = kind.split(".")
    path = bench.folder / "strategies" / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    flag = str(bench.folder / f"{name} stopped")
    path.write_text(STOPPED.format(module=module, kind=kind, cut=cut, signal=number, pause=pause, flag=flag))
    chosen = {"strategy": name, "strategy_file": str(path), "launcher": "torchrun", "devices_per_node": 2}
    return bench.chain(name, **(chosen | {"total_steps": STEPS} | values))
