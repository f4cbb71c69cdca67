"""DeepSpeed's ZeRO, stage 3, with parameters and the optimizer's state on the node's own disk.

Rajbhandari et al. 2021, "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning".
"""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import nn

from relay.base.errors import UserError
from relay.environments.node_folder import own_folder
from relay.process.devices import is_gpu
from relay.strategies import _deepspeed_library as library
from relay.strategies._deepspeed import ZeRO
from relay.strategies.base import Ranks, Requirements

# So many numbers, or those of the largest parameter, are in main memory at once in each of the buffers: for a
# parameter, its gradient, its optimizer's state, and one to spare.
BUFFER_NUMBERS, BUFFERS = 2**22, 5
NODE_DISK = "TORCH_RELAY_NODE_DISK"
# On the disk for each parameter: the one that layers are computed with, the one that is updated, and at most two
# numbers of an optimizer's state.
NUMBERS_PER_PARAMETER = 4
# DeepSpeed leaves in memory what is smaller than 1 MB. Here, only what is smaller than the unit in which it writes: it
# cuts the rest of each gradient off, and must not take that for something to write.
LEAST_BYTES = 1024
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
        needs=("whole_tensors", "unconditional"),
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

    def _build(self) -> None:
        self.folder = swap_folder()
        _folders.append(self.folder)
        library.imported(self.ranks.device)
        self.counts = counting()
        from deepspeed.runtime.swap_tensor.optimizer_utils import OptimizerSwapper, SwapTensorContext

        SwapTensorContext.release_memory = _released  # both for good: they are called in every step
        OptimizerSwapper._swap_out_gradients = _kept
        initialise = OptimizerSwapper.__init__

        def with_everything(swapper: Any, *given: Any, **named: Any) -> None:
            initialise(swapper, *given, **named)
            swapper.min_aio_bytes = LEAST_BYTES

        with mock.patch.object(OptimizerSwapper, "__init__", with_everything):
            super()._build()

    def configuration(self, parameters: int) -> dict[str, Any]:
        check_room(self.folder, parameters, self.task.dtype.itemsize, self.ranks)
        configuration = super().configuration(parameters)
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
        swapper.min_aio_bytes = LEAST_BYTES
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


def swap_folder() -> Path:
    """A new folder on the node's disk. Raises UserError for a disk that is not named in full."""
    disk = os.environ.get(NODE_DISK) or tempfile.gettempdir()
    if "$" in disk or not Path(disk).is_absolute():
        raise UserError(
            f"zero3_offload_nvme: the node's disk is {disk!r}; allowed: an absolute folder, its variables replaced "
            "(`node_disk` in the site's file)"
        )
    return Path(tempfile.mkdtemp(prefix="swapped-", dir=own_folder(Path(disk))))


def check_room(folder: Path, parameters: int, bytes_each: int, ranks: Ranks) -> None:
    """Raise UserError unless the disk has room for what all ranks of this node put there."""
    on_node = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    needed = NUMBERS_PER_PARAMETER * bytes_each * parameters * on_node // ranks.world_size
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"zero3_offload_nvme: {folder.parent.parent} on node {os.uname().nodename} has {free / 1e9:.3g} GB free, "
            f"{needed / 1e9:.3g} GB are needed; name a larger disk as `node_disk` in the site's file"
        )


def reserve(path: Path, size: int) -> None:
    """Take room on the disk for a file of so many bytes. Raises UserError where there is none."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"zero3_offload_nvme: {path.parent} on node {os.uname().nodename} has no room for {size / 1e6:.3g} MB more "
            f"({error.strerror}); free space there, or name a larger disk as `node_disk` in the site's file"
        ) from None
    finally:
        os.close(descriptor)


def counting() -> dict[str, int]:
    """Bytes that this process has read from the disk and written to it, from now on counted by every reader.

    DeepSpeed does not look at how a write has ended. On a full disk it would go on, and later read what is not there.
    So room is taken for each file before it is written.
    """
    from deepspeed.ops.op_builder import AsyncIOBuilder

    operation = AsyncIOBuilder().load()
    if hasattr(operation.aio_handle, "counts"):
        counts: dict[str, int] = operation.aio_handle.counts
        return counts
    reserved: set[tuple[str, int]] = set()

    class Counted(operation.aio_handle):  # type: ignore[name-defined]
        """DeepSpeed's asynchronous reader and writer of files."""

        counts: ClassVar = {"disk_bytes_read": 0, "disk_bytes_written": 0}

        def async_pread(self, tensor: Any, *place: Any) -> Any:
            """Begin to read into the tensor."""
            self.counts["disk_bytes_read"] += tensor.nbytes
            return super().async_pread(tensor, *place)

        def async_pwrite(self, tensor: Any, path: str, offset: int) -> Any:
            """Begin to write the tensor. Raises UserError where the disk has no room for it."""
            end = offset + tensor.nbytes
            if (path, end) not in reserved:
                reserve(Path(path), end)
                reserved.add((path, end))
            self.counts["disk_bytes_written"] += tensor.nbytes
            return super().async_pwrite(tensor, path, offset)

    operation.aio_handle = Counted
    return Counted.counts
