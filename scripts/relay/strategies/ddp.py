"""Every process holds the whole model and a slice of the batch; gradients are averaged during backward."""

from torch.nn.parallel import DistributedDataParallel

from relay.strategies.base import Requirements, Strategy


class DDP(Strategy):
    """PyTorch's DistributedDataParallel over gloo on CPUs and NCCL on GPUs, one process for each device."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        device_ids = [self.ranks.device] if self.ranks.device.type == "cuda" else None
        self.forward = DistributedDataParallel(self.model, device_ids=device_ids)  # type: ignore[method-assign]
