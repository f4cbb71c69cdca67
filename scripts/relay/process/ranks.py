"""This process's rank among the processes of the run, and the process groups that all of them share."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout

from relay.base.errors import UserError
from relay.chain.peers import SAVING_TIMEOUT, Peers
from relay.process import devices as kinds
from relay.process import meeting
from relay.process.devices import gpu, wait_for
from relay.run_folder import alive

# Longer than any pause between two collectives of a healthy run, and short enough that a lost peer soon ends the job.
TIMEOUT = timedelta(minutes=5)

# Gloo is added for tensors elsewhere, such as shards that are offloaded to main memory. With MPI it also lends the
# process groups its store, by which further groups are made: MPI alone would have none.
# To gloo alone, torch before 2.11 adds NCCL where a mesh of all ranks is made.
_BY_DEVICE = {
    ("gloo", "cuda"): "cpu:gloo,cuda:gloo",
    ("nccl", "cuda"): "cpu:gloo,cuda:nccl",
    ("mpi", "cuda"): "cpu:gloo,cuda:mpi",
    ("mpi", "cpu"): "cpu:mpi,cuda:gloo",
}


def backends() -> list[str]:
    """The backends with which this torch was built."""
    checks = {"nccl": dist.is_nccl_available, "gloo": dist.is_gloo_available, "mpi": dist.is_mpi_available}
    return [name for name, is_available in checks.items() if is_available()]


def _check_numbered_alike(rank: int, world_size: int, device: torch.device) -> None:
    """Raise UserError where MPI counts the processes otherwise than Slurm, such as each of them as the only one."""
    mpi = dist.group.WORLD._get_backend(device)  # type: ignore[union-attr]  # there is one
    if (mpi.rank(), mpi.size()) != (rank, world_size):
        raise UserError(
            f"backend: 'mpi': this process is {mpi.rank()} of {mpi.size()} for MPI, {rank} of {world_size} for us; "
            "srun has to start MPI's processes: set SLURM_MPI_TYPE to what `srun --mpi=list` offers, such as pmix"
        )


def _store(rank: int, world_size: int) -> dist.Store | None:
    """Where the processes meet: of one node in a file, and gloo listens on its loopback alone; of several nodes at
    MASTER_ADDR alone, where torch's own server would listen on all interfaces. None: torchrun has a store for them.
    """
    if folder := os.environ.get(meeting.VARIABLE):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", meeting.LOOPBACK)
        store = dist.FileStore(f"{folder}/ranks", world_size)
        store.set_timeout(TIMEOUT)
        return store
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listening = socket.create_server(place).detach() if rank == 0 else None
    return dist.TCPStore(*place, world_size, rank == 0, TIMEOUT, master_listen_fd=listening)


@dataclass(frozen=True, kw_only=True)
class Ranks(Peers):
    """This process's rank, devices and process groups. A process has several devices only if it is the node's only one.

    There are always both of the peers' groups, also for one process.
    """

    local_rank: int
    devices: tuple[torch.device, ...]
    backend: str
    control: dist.ProcessGroup
    saving: dist.ProcessGroup

    @classmethod
    def join(cls, device: str, backend: str | None, devices: int = 1) -> Ranks:
        """Join the process groups that the launcher's environment variables describe. Without these, join alone.

        `device` is the kind of device, and `devices` is how many of them this process uses.
        Raises UserError where no GPU is usable, or torch is built without the backend, and RuntimeError where the
        peers do not join within the timeout.
        """
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        own = (torch.device("cpu"),) * devices
        if device == "cuda":
            if not torch.cuda.is_available():
                raise UserError("device: 'cuda' is not allowed here; torch sees no GPU (driver, build, or allocation)")
            # A launcher may show each rank one GPU, or all GPUs of the node. The remainder is right in both cases.
            seen = torch.cuda.device_count()
            own = tuple(gpu((local_rank + place) % seen) for place in range(devices))
            torch.cuda.set_device(own[0])
        if world_size == 1:
            backend = "gloo"
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        else:
            offered = backends()
            if backend is None or backend not in offered:
                raise UserError(f"backend: '{backend}' is not allowed; this torch is built with {', '.join(offered)}")
            chosen = _BY_DEVICE.get((backend, device), backend).replace("cuda", kinds.GPU)
            store = _store(rank, world_size)
            dist.init_process_group(chosen, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
            if backend == "gloo":  # torch asks the groups' default at the end, and warns where several kinds have none
                dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.GLOO)  # type: ignore[union-attr]
            if backend == "mpi":
                _check_numbered_alike(rank, world_size, own[0])
        control = dist.new_group(backend="gloo", timeout=TIMEOUT)
        saving = dist.new_group(backend="gloo", timeout=SAVING_TIMEOUT)
        return cls(
            rank, world_size, local_rank=local_rank, devices=own, backend=backend, control=control, saving=saving
        )

    @property
    def device(self) -> torch.device:
        """The first of this process's devices; inputs and losses are there."""
        return self.devices[0]

    def mesh(self, *sizes: int, names: tuple[str, ...] | None = None) -> DeviceMesh:
        """A mesh of all ranks with these sizes; neighbouring ranks are neighbours in the last dimension. Collective."""
        mesh = init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
        for group in mesh.get_all_groups():  # torch's own timeout of half an hour would detect a lost peer too late
            _set_pg_timeout(TIMEOUT, group)
        return mesh

    def collect(self, value: Any) -> list[Any]:
        """Every rank's value, in the order of ranks, on rank 0; an empty list on the others. Collective."""
        values: list[Any] = [None] * self.world_size
        dist.gather_object(value, values if self.rank == 0 else None, group=self.control)
        return values if self.rank == 0 else []

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        dist.barrier(group=self.control)

    def wait_for_device(self) -> None:
        """Wait until this process's device has computed what is queued: replayed steps are queued much faster.

        Raises RuntimeError where it hangs.
        """
        wait_for(self.device, TIMEOUT.total_seconds())

    def wait_for_files(self) -> None:
        """Wait for all ranks, also for one that reads or writes files for longer than TIMEOUT. Collective."""
        dist.barrier(group=self.saving)

    def leave(self, code: int = 0) -> NoReturn:
        """Wait for all ranks, then end this process. Gloo's destructors do not run, because they may abort."""
        self.barrier()
        dist.destroy_process_group()
        sys.stdout.flush()
        sys.stderr.flush()
        alive.go()
        os._exit(code)
