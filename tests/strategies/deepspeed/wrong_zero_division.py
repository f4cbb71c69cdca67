"""Stage 1, which says that it divides gradients and parameters, too."""

from __future__ import annotations

from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements


class Division(ZeRO):
    requirements = Requirements(
        stack="deepspeed", least_devices=2, divides=("samples", "parameters", "gradients", "optimizer"), compiles=False
    )
    stage = 1
