"""Who this process is among the run's processes, and the small group through which they agree."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from relay.base.errors import UserError

# Longer than any pause between two collectives of a healthy run, short enough that a lost peer ends the job soon.
TIMEOUT = timedelta(minutes=5)
# A checkpoint's slowest rank may write for long after the fastest. That a peer is lost shows in the other groups.
SAVING_TIMEOUT = timedelta(hours=2)


@dataclass(frozen=True)
class Ranks:
    """This process's place. `devices` are its own: one, or several where one process holds them all.

    `control` is a gloo group of all processes, whatever backend the strategy itself uses. `saving` is another one, for
    checkpoints that a thread writes in the background: collectives of two threads must not meet in one group.
    """

    rank: int
    world_size: int
    local_rank: int
    devices: tuple[torch.device, ...]
    backend: str
    control: dist.ProcessGroup
    saving: dist.ProcessGroup

    @classmethod
    def join(cls, device: str, backend: str, devices: int = 1) -> Ranks:
        """Join the process groups that the launcher's environment describes; alone where there is none.

        `device` is a kind of device, of which this process takes as many as `devices` says.

        Raises UserError where there is no GPU to use, and RuntimeError where the peers do not come within the timeout.
        """
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        own = (torch.device("cpu"),) * devices
        if device == "cuda":
            if not torch.cuda.is_available():
                raise UserError("device: 'cuda' is not allowed here; torch sees no GPU (driver, build, or allocation)")
            # A launcher may show each rank one GPU or all of the node's: the remainder is right in both cases.
            seen = torch.cuda.device_count()
            own = tuple(torch.device("cuda", (local_rank + place) % seen) for place in range(devices))
            torch.cuda.set_device(own[0])
        if world_size == 1:
            backend = "gloo"
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        else:
            # Beside NCCL gloo, for what lies in the CPUs' memory: shards that are offloaded.
            dist.init_process_group("cpu:gloo,cuda:nccl" if backend == "nccl" else backend, timeout=TIMEOUT)
        control = dist.new_group(backend="gloo", timeout=TIMEOUT)
        saving = dist.new_group(backend="gloo", timeout=SAVING_TIMEOUT)
        return cls(rank, world_size, local_rank, own, backend, control, saving)

    @property
    def device(self) -> torch.device:
        """The first of its devices, where inputs and losses are."""
        return self.devices[0]

    def mesh(self, *sizes: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
        """The ranks in so many dimensions, neighbours in the last one; lost peers show there in time. Collective."""
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
        for group in mesh.get_all_groups():  # to which torch gives a timeout of its own, of half an hour
            _set_pg_timeout(TIMEOUT, group)
        return mesh

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on every rank. Collective."""
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.control)
        return values

    def collect(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on rank 0; nothing on the others. Collective."""
        values: list[Any] = [None] * self.world_size
        dist.gather_object(value, values if self.rank == 0 else None, group=self.control)
        return values if self.rank == 0 else []

    def largest(self, values: list[float]) -> list[float]:
        """The element-wise maximum over the ranks, on every rank. Collective, and cheaper than `gather`."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier(group=self.control)

    def leave(self, code: int = 0) -> NoReturn:
        """End the process after all ranks have come this far, without running gloo's destructors: they may abort."""
        self.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
