"""The loss scaling of fp16 where gradients may be sharded."""

import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from relay.base.grouped import grouped
from relay.strategies._clipping import local


class LossScaler(ShardedGradScaler):
    """Scales the loss, so that small gradients do not vanish in fp16. An overflow on any rank counts on all ranks.

    torch's own scaler refuses a mix of whole and sharded gradients, which tensor parallelism has: norms stay whole.
    Here, each rank checks its own gradients. A later exchange tells whether any rank found an overflow.
    """

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool = True,
    ) -> dict[torch.device, torch.Tensor]:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        held = (local(p.grad) for p in parameters if p.grad is not None)
        with torch.no_grad():
            for (device, _), gradients in grouped(held, lambda each: (each.device, each.dtype)).items():
                overflow = torch.zeros_like(found_inf, device=device)
                torch._amp_foreach_non_finite_check_and_unscale_(gradients, overflow, inv_scale.to(device))
                found_inf += overflow.to(found_inf.device)
        return {found_inf.device: found_inf}
