"""Every process holds the whole model and a slice of the batch; gradients are averaged during backward."""

from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.nn.parallel import DistributedDataParallel

from relay.strategies.base import Requirements, Strategy


def bfloat16_hook(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """torch's own hook under another name: DDP refuses that one without NCCL, though gloo sums bfloat16 as well."""
    return default_hooks.bf16_compress_hook(group, bucket)  # type: ignore[arg-type]


# Of PowerSGD, by bucket: what was left out, and the factors with which the next step begins. Its generator has no place
# here: it is drawn from only when a bucket is first compressed.
MEMORIES = ("error_dict", "p_memory_dict", "q_memory_dict")
HOOKS = {"fp16": default_hooks.fp16_compress_hook, "bf16": bfloat16_hook}


class DDP(Strategy):
    """PyTorch's DistributedDataParallel over gloo on CPUs and NCCL on GPUs, one process for each device.

    `accumulation`: parts in which a slice is worked through, their gradients averaged together once. `bucket_mb`: size
    in MB (2**20 bytes) of what is averaged at once. `compression`: how gradients are rounded on their way; PowerSGD
    (Vogels et al. 2019) sends matrices of `powersgd_rank` in their place, from step `powersgd_start` on, and keeps what
    it has left out for the next step; over gloo it averages everything at once.
    """

    requirements = Requirements(
        least_devices=2,
        divides=("samples",),
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
        # What PowerSGD has left out would be NaN from the first overflow of fp16 on, for ever.
        not_in={"compression": {"powersgd": ("fp16",)}},
        part_of={"powersgd_rank": ("compression", "powersgd"), "powersgd_start": ("compression", "powersgd")},
        lossy={"compression": {"fp16": 2e-3, "bf16": 5e-2, "powersgd": 0.6}},
    )
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
        self.wrapper = DistributedDataParallel(
            self.model,
            device_ids=[self.ranks.device] if self.ranks.device.type == "cuda" else None,
            bucket_cap_mb=self._bucket_mb(bucket_mb, compression),
            static_graph=static_graph,
            find_unused_parameters=find_unused_parameters,
        )
        self.forward = self.wrapper  # type: ignore[method-assign]
        self._settle_buckets()
        if compression == "powersgd":
            # Epsilon: else a gradient of zeros would become one of NaN.
            self.powersgd = PowerSGDState(None, powersgd_rank, powersgd_start, orthogonalization_epsilon=1e-8)
            self.wrapper.register_comm_hook(self.powersgd, powerSGD_hook)
        elif compression != "none":
            self.wrapper.register_comm_hook(None, HOOKS[compression])

    def _bucket_mb(self, asked: float, compression: str) -> float | None:
        if compression == "powersgd" and self.ranks.backend == "gloo":
            # gloo's own threads begin its sums: those of several buckets in another order on every rank, and it aborts.
            return sum(p.nbytes for p in self.model.parameters()) / 2**20 + 1
        # By itself, DDP makes the first bucket a smaller one.
        return None if asked == DDP.requirements.options["bucket_mb"] else asked

    def _settle_buckets(self) -> None:
        """Make the passes after which DDP sorts its buckets by the order of the gradients, and change nothing by them.

        Three processes or more round a sum in another order when it comes in another bucket, so that a resumed run,
        whose first step had the first buckets again, would not end bit for bit like an uncut one. PowerSGD keeps what
        belongs to a bucket. In training mode, so that what is compiled here is what is needed.
        """
        example = self.task.example(self.global_batch_size // self.replica.count // self.accumulation)
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        for _ in range(2):  # the second begins with the new buckets
            self.wrapper(torch.zeros_like(example, device=self.ranks.device)).float().mean().backward()
        self.optimizer.zero_grad()
        for buffer, before in zip(self.model.buffers(), buffers, strict=True):
            buffer.copy_(before)

    def train_step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """One optimiser step; gradients are exchanged with the slice's last part only."""
        self.optimizer.zero_grad()
        losses = []
        parts = list(zip(inputs.chunk(self.accumulation), targets.chunk(self.accumulation), strict=True))
        for number, (part, its_targets) in enumerate(parts, 1):
            with self.wrapper.no_sync() if number < len(parts) else nullcontext():
                loss = self.task.loss(self.wrapper(part), its_targets) * (len(its_targets) / len(targets))
                self.backward(loss)
            losses.append(loss.detach())
        self.update()
        return torch.stack(losses).sum()

    def further_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """PowerSGD's own state, which differs between the ranks."""
        if self.powersgd is None:
            return {}
        held = {"steps": torch.tensor(self.powersgd.iter)}
        for kind in MEMORIES:
            buckets: dict[int, torch.Tensor] = getattr(self.powersgd, kind)
            held |= {f"{kind}.{bucket}": tensor for bucket, tensor in buckets.items()}
        return {self._place: held}

    def load(self, directory: Path) -> None:
        """Read what `save` wrote. PowerSGD begins anew where the checkpoint is of another number of processes."""
        super().load(directory)
        saved = dcp.FileSystemReader(directory).read_metadata().state_dict_metadata
        held = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in saved.items()
            if name.startswith(f"{self._place}.") and isinstance(found, TensorStorageMetadata)
        }
        if self.powersgd is None or not held:
            return
        dcp.load(held, checkpoint_id=directory, process_group=self.ranks.saving)
        named = {name.removeprefix(f"{self._place}."): tensor for name, tensor in held.items()}
        self.powersgd.iter = int(named.pop("steps"))
        for name, tensor in named.items():
            kind, bucket = name.split(".")
            getattr(self.powersgd, kind)[int(bucket)] = tensor.to(self.ranks.device)

    @property
    def _place(self) -> str:
        """Where this rank's own state stands in a checkpoint."""
        return f"powersgd-{self.ranks.rank}-of-{self.ranks.world_size}"
