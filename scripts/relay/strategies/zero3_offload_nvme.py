"""DeepSpeed's ZeRO, stage 3, with parameters and the optimizer's state on the node's own disk.

Rajbhandari et al. 2021, "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning".
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from relay.process.devices import is_gpu
from relay.strategies import _deepspeed_disk as disk
from relay.strategies import _deepspeed_library as library
from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Requirements

# So many numbers, or those of the largest parameter, are in main memory at once in each of the buffers: for a
# parameter, its gradient, its optimizer's state, and one to spare.
BUFFER_NUMBERS, BUFFERS = 2**22, 5
_folders: list[Path] = []


class ZeRO3OffloadNVMe(ZeRO):
    """Parameters and the optimizer's state lie below `node_disk` and are read when they are needed.

    CPUs update the parameters: with DeepSpeed's own Adam for Adam and AdamW, with torch's optimizer otherwise. The
    number of bytes that went to the disk and back is recorded.
    """

    requirements = Requirements(
        stack="deepspeed",
        packages=("deepspeed>=0.14.5,<0.20",),
        least_devices=2,
        divides=("samples", "parameters", "gradients", "optimizer"),
        compiles=False,
        needs=("whole_tensors",),
        node_needs={"cpu": ("libaio", "node_disk"), "cuda": ("libaio", "node_disk")},
    )
    stage = 3
    adam = "DeepSpeedCPUAdam"

    @classmethod
    @contextmanager
    def service(cls, run_id: str, device: str) -> Iterator[None]:
        """Remove what this process has put on the disk when its work is over."""
        try:
            yield
        finally:
            while _folders:
                shutil.rmtree(_folders.pop(), ignore_errors=True)

    def _build(self, **options: Any) -> None:
        self.folder = disk.swap_folder()
        _folders.append(self.folder)
        library.imported(self.ranks.device)
        self.counts = disk.counting()
        from deepspeed.runtime.swap_tensor.optimizer_utils import OptimizerSwapper, SwapTensorContext

        SwapTensorContext.release_memory = _released  # both for good: they are called in every step
        OptimizerSwapper._swap_out_gradients = _kept
        initialise = OptimizerSwapper.__init__

        def with_everything(swapper: Any, *given: Any, **named: Any) -> None:
            initialise(swapper, *given, **named)
            swapper.min_aio_bytes = disk.LEAST_BYTES

        with mock.patch.object(OptimizerSwapper, "__init__", with_everything):
            super()._build(**options)

    def configuration(self, parameters: int, **options: Any) -> dict[str, Any]:
        disk.check_room(self.folder, parameters, self.task.dtype.itemsize, self.ranks)
        configuration = super().configuration(parameters, **options)
        place = {"device": "nvme", "nvme_path": str(self.folder), "pin_memory": is_gpu(self.ranks.device)}
        largest, most = self._sizes()
        configuration["zero_optimization"] |= {
            # `max_in_cpu`: otherwise a thousand million numbers stay in main memory.
            "offload_param": {**place, "buffer_size": largest, "buffer_count": most, "max_in_cpu": 0},
            "offload_optimizer": {**place, "buffer_count": BUFFERS},
            "sub_group_size": BUFFER_NUMBERS,
            # A gathered layer has a buffer until it is given up: at once, and none is read ahead.
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
        }
        return configuration

    def _sizes(self) -> tuple[int, int]:
        """Numbers in the largest part of a parameter, and how many parts may be in main memory at once."""
        model = self.task.model()
        largest = max(parameter.numel() for parameter in model.parameters())
        most = max(len(list(module.parameters(recurse=False))) for module in model.modules())
        return -(-largest // self.ranks.world_size), 2 * most + 1

    def divide(self, deepspeed: Any, model: nn.Module, config: dict[str, Any]) -> None:
        from deepspeed.runtime.config import DeepSpeedConfig
        from deepspeed.runtime.swap_tensor.partitioned_param_swapper import AsyncPartitionedParameterSwapper

        swapper = AsyncPartitionedParameterSwapper(DeepSpeedConfig(config), self.task.dtype)
        swapper.min_aio_bytes = disk.LEAST_BYTES
        deepspeed.zero.Init(module=model, config_dict_or_path=config, param_swapper=swapper)

    def counted(self) -> dict[str, int]:
        """Bytes read from the node's disk and written to it."""
        return dict(self.counts)


def _released(context: Any) -> None:
    """Give up a swapped tensor's memory, and keep its type: DeepSpeed makes each one float32, also one of float64."""
    for tensor in (context.compute_tensor, context.swap_tensor):
        tensor.data = torch.empty(0, dtype=context.compute_tensor.dtype)


def _kept(swapper: Any, parameter: Any, gradient_offsets: Any, gradient_tensors: Any, gradient_swapper: Any) -> None:
    """Keep gradients in main memory until the optimizer's step."""
    held = swapper.swap_params_info[swapper.parameter_id(parameter)].unswapped_gradients
    held.update(zip(gradient_offsets, gradient_tensors, strict=True))
