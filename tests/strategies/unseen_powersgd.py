"""Wrong: compresses gradients by torch's PowerSGD hook, which begins at step 1,000 by its own default; undeclared."""

from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from relay.strategies.base import Requirements, Strategy


class PowerSGDLater(Strategy):
    """Wrong: compresses gradients by torch's PowerSGD hook, which begins at step 1,000 by its own default."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        wrapper = DistributedDataParallel(self.model)
        wrapper.register_comm_hook(PowerSGDState(None), powerSGD_hook)
        self.module = wrapper
