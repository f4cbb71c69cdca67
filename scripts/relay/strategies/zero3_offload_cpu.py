"""DeepSpeed's ZeRO, stage 3, with parameters and the optimizer's state in main memory.

Ren et al. 2021, "ZeRO-Offload: Democratizing Billion-Scale Model Training".
"""

from typing import Any

from relay.process.devices import is_gpu
from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements


class ZeRO3OffloadCPU(ZeRO):
    """Layers are gathered on the device when they are needed; CPUs update the parameters.

    Adam and AdamW are DeepSpeed's own, other optimizers torch's.
    """

    requirements = Requirements(
        stack="deepspeed",
        packages=("deepspeed>=0.14.5,<0.20",),
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        compiles=False,
        needs=("whole_tensors", "unconditional"),
    )
    stage = 3
    adam = "DeepSpeedCPUAdam"

    def configuration(self, parameters: int) -> dict[str, Any]:
        configuration = super().configuration(parameters)
        place = {"device": "cpu", "pin_memory": is_gpu(self.ranks.device)}
        configuration["zero_optimization"] |= {"offload_param": place, "offload_optimizer": place}
        return configuration
