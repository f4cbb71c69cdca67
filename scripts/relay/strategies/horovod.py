"""Horovod: hooks average each gradient in a thread of Horovod's own while the backward pass goes on (document 000)."""

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from relay.process import meeting
from relay.process.ranks import TIMEOUT, Ranks
from relay.strategies.base import Requirements, Strategy

LOOPBACK = "127.0.0.1"
# The variables by which each process of horovodrun is told its place; `meet` sets the same ones.
RENDEZVOUS = "HOROVOD_GLOO_RENDEZVOUS_ADDR"


class Horovod(Strategy):
    """Horovod's DistributedOptimizer, over Horovod's own gloo on CPUs and NCCL on GPUs.

    `accumulation` is the number of parts in which a slice is computed; gradients are exchanged after the last part.
    `bucket_mb` is the size, in MB of 2**20 bytes, of a group of gradients that is averaged at once. Horovod itself
    averages what is ready at the moment. With three or more processes, sums are rounded otherwise in another
    group, and a resumed run would not be bit for bit like an uncut one.
    `compression` says how gradients are rounded before they are sent.
    """

    requirements = Requirements(
        stack="horovod",
        packages=("horovod",),
        least_devices=2,
        divides=("samples",),
        options={"accumulation": 1, "bucket_mb": 25.0, "compression": "none"},
        choices={"compression": ("none", "fp16")},
        least={"bucket_mb": 0.001},
        lossy={"compression": {"fp16": 2e-3}},
    )
    optimizer: Any  # Horovod's, a subclass of the task's own, which it makes when it is called

    @classmethod
    @contextmanager
    def service(cls, run_id: str, device: str) -> Iterator[None]:
        """End Horovod's thread when all processes have done their work. After an error the process ends at once."""
        yield
        if "horovod.torch" in sys.modules and _hvd().is_initialized():
            _hvd().shutdown()

    def build(self, *, accumulation: int = 1, bucket_mb: float = 25.0, compression: str = "none") -> None:
        meet(self.ranks)
        self.build_whole()
        self.accumulation = accumulation
        hvd = _hvd()
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.model.named_parameters(),
            compression=getattr(hvd.Compression, compression),
            backward_passes_per_step=accumulation,
            groups=buckets(self.model, bucket_mb),
        )
        # Its own refuses `set_to_none`, which torch's checkpoints pass.
        type(self.optimizer).zero_grad = torch.optim.Optimizer.zero_grad

    def update(self) -> None:
        """Wait for the averages, then step. fp16's scale is taken from the averages, not from what is still sent."""
        optimizer: Any = self.optimizer  # of a class that Horovod derives from the task's
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            super().update()

    def busy_waits(self) -> Sequence[tuple[Any, str]]:
        """Horovod asks again and again whether its own thread has averaged the gradients."""
        return [(self.optimizer, "synchronize")]


def buckets(model: torch.nn.Module, megabytes: float) -> list[list[torch.nn.Parameter]]:
    """The parameters in the order in which their gradients come, in groups of at least so many MB of 2**20 bytes."""
    groups: list[list[torch.nn.Parameter]] = [[]]
    for parameter in reversed([parameter for parameter in model.parameters() if parameter.requires_grad]):
        if sum(held.nbytes for held in groups[-1]) >= megabytes * 2**20:
            groups.append([])
        groups[-1].append(parameter)
    return groups


def meet(ranks: Ranks) -> None:
    """Let Horovod's processes find each other, once for a process. Collective.

    horovodrun has introduced its processes already. Those of torchrun and srun are introduced by what horovodrun uses,
    an HTTP server, on rank 0.
    """
    hvd = _hvd()
    if hvd.is_initialized():
        return
    # A group of gradients that was declared as one must not be merged with another that happens to be ready.
    os.environ["HOROVOD_DISABLE_GROUP_FUSION"] = "1"
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(int(TIMEOUT.total_seconds()))
    if RENDEZVOUS not in os.environ:
        _introduce(ranks)
    hvd.init()
    if (hvd.rank(), hvd.size()) != (ranks.rank, ranks.world_size):
        raise RuntimeError(f"Horovod has made this process {hvd.rank()} of {hvd.size()}, it is {ranks}")


def _serve(slots: list[Any], address: str) -> int:
    """Start the server that introduces these processes, in a thread that ends with this one; its port."""
    from horovod.runner.http.http_server import RendezvousServer

    meeting.horovod_listens_at(address)
    server = RendezvousServer()
    port: int = server.start()
    server.init(slots)
    return port


def _introduce(ranks: Ranks) -> None:
    """Set the variables that horovodrun sets for its processes."""
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.gloo_run import create_slot_env_vars

    hosts = ranks.gather(socket.gethostname())
    counted = [HostInfo(host, hosts.count(host)) for host in dict.fromkeys(hosts)]
    slots = get_host_assignments(counted, ranks.world_size)
    server = LOOPBACK if len(counted) == 1 else os.environ["MASTER_ADDR"]
    port = ranks.gather(_serve(slots, server) if ranks.rank == 0 else None)[0]
    os.environ |= create_slot_env_vars(slots[ranks.rank]) | {
        RENDEZVOUS: server,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME") or interface(server),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def interface(address: str) -> str:
    """The network interface of this node by which it reaches an address. Node names need not resolve for that."""
    import psutil

    family, _, _, _, place = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing
        own = probe.getsockname()[0]
    return next(
        name for name, addresses in psutil.net_if_addrs().items() if any(held.address == own for held in addresses)
    )


def _hvd() -> Any:
    """The package `horovod.torch`, which only this strategy's stack has."""
    import horovod.torch

    return horovod.torch
