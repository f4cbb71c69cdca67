"""DeepSpeed's ZeRO, stage 3: parameters, gradients and the optimizer's state are divided among the ranks."""

from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements


class ZeRO3(ZeRO):
    """Data parallelism over gloo on CPUs and NCCL on GPUs."""

    requirements = Requirements(
        stack="deepspeed",
        packages=("deepspeed>=0.14.5,<0.20",),
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        options={"fused_adam": False},
        needs=("adam_if_fused", "whole_tensors", "unconditional"),
        compiles=False,
    )
    stage = 3
