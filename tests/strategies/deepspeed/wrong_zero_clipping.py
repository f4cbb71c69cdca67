"""DeepSpeed's own default: gradients are clipped at 1.0."""

from __future__ import annotations

from typing import Any

from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements


class Clipping(ZeRO):
    requirements = Requirements(
        stack="deepspeed", least_devices=2, divides=("samples", "gradients", "optimizer"), compiles=False
    )
    stage = 2

    def configuration(self, parameters: int, **options: Any) -> dict[str, Any]:
        return super().configuration(parameters, **options) | {"gradient_clipping": 1.0}
