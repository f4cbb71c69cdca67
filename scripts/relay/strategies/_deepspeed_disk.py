"""A folder on the node's own disk for what DeepSpeed swaps out, and a count of the bytes that go there and back."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from relay.base.errors import UserError
from relay.environments.node_folder import own_folder
from relay.strategies.base import Ranks

NODE_DISK = "TORCH_RELAY_NODE_DISK"
# On the disk for each parameter: the one that layers are computed with, the one that is updated, and at most two
# numbers of an optimizer's state.
NUMBERS_PER_PARAMETER = 4
# DeepSpeed leaves in memory what is smaller than 1 MB. Here, only what is smaller than the unit in which it writes: it
# cuts the rest of each gradient off, and must not take that for something to write.
LEAST_BYTES = 1024


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
