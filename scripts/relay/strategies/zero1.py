"""DeepSpeed's ZeRO, stage 1: the optimizer's state is divided among the ranks."""

from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements


class ZeRO1(ZeRO):
    """Data parallelism over gloo on CPUs and NCCL on GPUs."""

    requirements = Requirements(
        stack="deepspeed",
        packages=("deepspeed>=0.14.5,<0.20",),
        least_devices=2,
        divides=("samples", "optimizer"),
        options={"fused_adam": False},
        needs=("adam_if_fused", "whole_tensors"),
        compiles=False,
    )
    stage = 1
