"""DeepSpeed as it is: of a float64 model it keeps float32 copies, which it trains."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

from relay.strategies import _deepspeed_library
from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements


class Masters(ZeRO):
    requirements = Requirements(stack="deepspeed", least_devices=2, divides=("samples", "optimizer"), compiles=False)
    stage = 1

    def build(self, **options: Any) -> None:
        with mock.patch.object(_deepspeed_library, "in_type", return_value=nullcontext()):
            super().build(**options)
