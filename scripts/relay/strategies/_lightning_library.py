"""What strategies take of Lightning, and what they give it of the run: its processes, device and precision.

Lightning's names are from the package that is there: `lightning`, or the older `pytorch_lightning`. Both have the same
code. Some clusters' wheels have it under the older name (document 000).
"""
# ruff: noqa: F401  # names for the strategies

import os
from importlib.util import find_spec

import torch

from relay.datasets import vision
from relay.process.ranks import Ranks
from relay.strategies.base import Strategy

vision.importable()  # Lightning needs no torchvision, but fails to import beside one that fails

if find_spec("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins.environments import ClusterEnvironment
    from lightning.pytorch.plugins.precision import DeepSpeedPrecision, MixedPrecision, Precision
    from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy
    from lightning.pytorch.strategies import Strategy as LightningsStrategy
else:
    from pytorch_lightning import Callback, LightningModule, Trainer
    from pytorch_lightning.callbacks import ModelCheckpoint
    from pytorch_lightning.plugins.environments import ClusterEnvironment
    from pytorch_lightning.plugins.precision import DeepSpeedPrecision, MixedPrecision, Precision
    from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy
    from pytorch_lightning.strategies import Strategy as LightningsStrategy


class TheRunsProcesses(ClusterEnvironment):
    """The processes that the run's launcher has started, whichever it is.

    Lightning would look for Slurm's variables otherwise: it would count tasks by itself, and requeue the job.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__()
        self.ranks = ranks

    creates_processes_externally = True

    @property
    def main_address(self) -> str:
        """The address of rank 0's node."""
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        """The port on rank 0's node."""
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        """It is given, never found."""
        return False

    def world_size(self) -> int:
        """All processes of the run."""
        return self.ranks.world_size

    def set_world_size(self, size: int) -> None:
        """It is known."""

    def global_rank(self) -> int:
        """This process among all."""
        return self.ranks.rank

    def set_global_rank(self, rank: int) -> None:
        """It is known."""

    def local_rank(self) -> int:
        """This process among those of its node; on GPUs its device's number, for which DeepSpeed takes it."""
        return self.ranks.local_rank if self.ranks.device.index is None else self.ranks.device.index

    def node_rank(self) -> int:
        """This process's node."""
        return self.ranks.rank // int(os.environ.get("LOCAL_WORLD_SIZE", self.ranks.world_size))


class OnTheRunsDevice:
    """Before one of Lightning's strategies: the device is this rank's, and what was trained stays there."""

    parallel_devices: list[torch.device]

    @property
    def root_device(self) -> torch.device:
        """A rank may see its own GPU alone, or all of the node: which of them it uses is settled."""
        return self.parallel_devices[0]

    def teardown(self) -> None:
        """Lightning would move the model to main memory at its end."""
        self.model = None


def precision_plugin(strategy: Strategy) -> Precision:
    """Lightning's plugin for the task's precision.

    Parameters have their type already, and TF32 is a mode of the process. Given as an object, since Lightning turns
    the name "16-mixed" into bfloat16 on CPUs. The scaler is the run's, which checkpoints hold.
    """
    device = strategy.ranks.device.type
    if strategy.task.precision == "bf16":
        return MixedPrecision("bf16-mixed", device)
    if strategy.task.precision == "fp16":
        return MixedPrecision("16-mixed", device, scaler=strategy.scaler)
    return Precision()
