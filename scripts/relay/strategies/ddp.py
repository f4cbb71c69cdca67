"""Every process holds the whole model and a slice of the batch; gradients are averaged during backward."""

from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from relay.process.devices import generators_kept
from relay.spec.run import Setting
from relay.strategies.base import Requirements, Strategy
from relay.task import batches
from relay.task.bound import BoundTask


def powersgd_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook, which seeds every GPU, alike on all ranks: all would then drop the same units."""
    with generators_kept(bucket.buffer().device):
        return powerSGD_hook(state, bucket)


def bfloat16_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's hook under another name. DDP refuses the original without NCCL, although gloo also sums bfloat16."""
    return default_hooks.bf16_compress_hook(group, bucket)  # type: ignore[arg-type]


# PowerSGD's state for each bucket: the remaining error, and the factors from which the next step starts. Its random
# generator need not be saved, because it is used only when a bucket is compressed for the first time.
MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": bfloat16_hook}


def sendable(setting: Setting, group: int, stages: int) -> str | None:
    """torch sends no numbers of 16 bits over MPI."""
    compression = setting.strategy.options["compression"]
    if setting.shape.backend != "mpi" or compression not in ("fp16", "bf16"):
        return None
    return f"compression {compression} cannot be sent over backend mpi; use nccl or gloo"


class DDP(Strategy):
    """PyTorch's DistributedDataParallel, one process for each device: over gloo on CPUs and NCCL on GPUs, or over MPI.

    `accumulation` is the number of parts in which a slice is computed; gradients are exchanged after the last part.
    `bucket_mb` is the size, in MB of 2**20 bytes, of a bucket of gradients that is averaged at once.
    `compression` says how gradients are rounded before they are sent. PowerSGD (Vogels et al. 2019) sends two matrices
    of rank `powersgd_rank` instead, from step `powersgd_start` on. It keeps the error and adds it to the next step's
    gradients. With gloo it uses a single bucket.
    """

    requirements = Requirements(
        least_devices=2,
        backends=("nccl", "gloo", "mpi"),
        divides=("samples",),
        needs=("sendable", "unconditional_if_static"),
        options={
            "accumulation": 1,
            "static_graph": False,
            "find_unused_parameters": False,
            "bucket_mb": 25.0,
            "compression": "none",
            "powersgd_rank": 1,
            "powersgd_start": 2,
        },
        choices={"compression": ("none", "fp16", "bf16", "powersgd")},
        least={"bucket_mb": 0.001, "powersgd_start": 2},
        # After the first overflow of fp16, the error that PowerSGD keeps would be NaN for ever.
        not_in={"compression": {"powersgd": ("fp16",)}},
        part_of={"powersgd_rank": ("compression", "powersgd"), "powersgd_start": ("compression", "powersgd")},
        lossy={"compression": {"fp16": 2e-3, "bf16": 5e-2, "powersgd": 0.6}},
    )
    # In its first ten, two of which `settle` has made, DDP times itself, and reads the GPU's clocks for it.
    capture_after = 9
    powersgd: PowerSGDState | None = None

    def build(
        self,
        *,
        accumulation: int = 1,
        static_graph: bool = False,
        find_unused_parameters: bool = False,
        bucket_mb: float = 25.0,
        compression: str = "none",
        powersgd_rank: int = 1,
        powersgd_start: int = 2,
    ) -> None:
        self.build_whole()
        self.accumulation = accumulation
        # With `device_ids`, DDP would copy tuples, lists and dicts among a model's arguments. On CPUs it does not.
        self.wrapper = DistributedDataParallel(
            self.model,
            bucket_cap_mb=self._bucket_mb(bucket_mb, compression),
            static_graph=static_graph,
            find_unused_parameters=find_unused_parameters or self.task.spec.card.leaves_out,
        )
        self.module = self.wrapper
        samples = self.global_batch_size // self.replica.count // accumulation
        settle(self.wrapper, self.task, samples, self.ranks.device)
        if compression == "powersgd":
            # Without epsilon, a gradient of zeros would become NaN.
            self.powersgd = PowerSGDState(None, powersgd_rank, powersgd_start, orthogonalization_epsilon=1e-8)
            self.wrapper.register_comm_hook(self.powersgd, powersgd_hook)
        elif compression != "none":
            self.wrapper.register_comm_hook(None, HOOKS[compression])

    def _bucket_mb(self, bucket_mb: float, compression: str) -> float | None:
        if compression == "powersgd" and self.ranks.backend != "nccl":
            # With several buckets, gloo's threads would start the sums in different orders on different ranks, and gloo
            # would abort. One bucket for everything avoids that.
            return sum(p.nbytes for p in self.model.parameters()) / 2**20 + 1
        # With its default size, DDP makes the first bucket smaller than the others.
        return None if bucket_mb == DDP.requirements.options["bucket_mb"] else bucket_mb

    def unexchanged(self) -> AbstractContextManager[None]:
        return self.wrapper.no_sync()

    def uncapturable(self) -> str:
        """It meets over NCCL alone without waiting; and it may ask, or count, on the CPU in every step."""
        if self.ranks.backend != "nccl" and self.replica.count > 1:
            return f"backend {self.ranks.backend} sends what lies in host memory"
        if self.powersgd is not None:
            return "compression powersgd counts its steps on the CPU"
        return "it looks for unused parameters on the CPU" if self.wrapper.find_unused_parameters else ""

    def forget_step(self) -> None:
        """What was begun to be averaged is given up."""
        self.wrapper.reducer._reset_state()

    def further_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """PowerSGD's state, which differs between ranks."""
        if self.powersgd is None:
            return {}
        state = {"steps": torch.tensor(self.powersgd.iter)}
        for kind in MEMORIES:
            buckets: dict[int, torch.Tensor] = getattr(self.powersgd, kind)
            state |= {f"{kind}.{bucket}": tensor for bucket, tensor in buckets.items()}
        return {self.own_place("powersgd"): state}

    def load_further_state(self, state: dict[str, dict[str, torch.Tensor]]) -> None:
        """PowerSGD starts afresh where another number of processes wrote the checkpoint."""
        if self.powersgd is None or not (tensors := state[self.own_place("powersgd")]):
            return
        self.powersgd.iter = int(tensors.pop("steps"))
        for name, tensor in tensors.items():
            kind, bucket = name.split(".")
            getattr(self.powersgd, kind)[int(bucket)] = tensor.to(self.ranks.device)


def settle(wrapper: DistributedDataParallel, task: BoundTask, samples: int, device: torch.device) -> None:
    """Run two passes after which DDP's buckets are final. They change no parameters, buffers or random generators.

    DDP sorts its buckets after the first pass. With three or more processes, a sum is rounded differently in another
    bucket. A resumed run would then not be bit for bit like an uncut one, and a communication hook's state belongs to a
    bucket. The passes are in training mode, so that the code which is compiled here is the code of training.
    """
    buffers = [buffer.clone() for buffer in wrapper.module.buffers()]
    batch = batches.moved(task.example(samples), device)
    with generators_kept(device):
        if wrapper.static_graph:
            # DDP averages gradients only of outputs that torch can open, and says nothing of others. This teaches torch
            # the classes of the model's outputs.
            with torch.no_grad():
                batches.leaves(task.outputs(wrapper.module, batch))
        for _ in range(2):  # the second pass starts with the new buckets
            task.loss(task.outputs(wrapper, batch), batch).backward()
    wrapper.zero_grad()
    for buffer, before in zip(wrapper.module.buffers(), buffers, strict=True):
        buffer.copy_(before)
