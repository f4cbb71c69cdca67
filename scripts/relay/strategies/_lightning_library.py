"""Lightning's names, from the package that is there: `lightning`, or the older `pytorch_lightning`.

Both have the same code. Some clusters' wheels have it under the older name (document 000).
"""

from __future__ import annotations

from importlib.util import find_spec

from relay.datasets import vision

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

__all__ = [
    "Callback",
    "ClusterEnvironment",
    "DDPStrategy",
    "DeepSpeedPrecision",
    "DeepSpeedStrategy",
    "LightningModule",
    "LightningsStrategy",
    "MixedPrecision",
    "ModelCheckpoint",
    "Precision",
    "Trainer",
]
