"""Mixtures of experts: what a module has to be so that its experts can be divided over processes.

A module is a mixture of experts if it has

- `experts`: the number of its experts (int);
- `compute(tokens, counts)`: called by its own `forward`, in place of which a strategy sets another function;
- `run_experts(tokens, counts)`: what `compute` returns in one process.

`tokens` (T, width) are sorted by expert, `counts` (experts,) int64 are the numbers of tokens of each, and the outputs
(T, width) have the order of the tokens. Its own parameters are stacked: entry e of the first dimension is expert e's.
What all experts share, such as the router, is in modules within it. A strategy replaces the stacked parameters by
DTensors. `run_experts` computes with what is on this process (`parameter.to_local()`), for so many experts as its
`counts` has. Each token's outputs must not depend on other tokens. `relay.tasks._gpt.MoE` is an example.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel.style import ParallelStyle

from relay.base.errors import UserError


def is_mixture(module: nn.Module) -> bool:
    """Whether a module is a mixture of experts."""
    count = getattr(module, "experts", None)
    return isinstance(count, int) and all(callable(getattr(module, name, None)) for name in ("compute", "run_experts"))


def mixtures(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The mixtures of a model, with their names. Raises UserError for one whose parameters are not stacked."""
    for name, module in model.named_modules():
        if not is_mixture(module):
            continue
        for own, parameter in module.named_parameters(recurse=False):
            if parameter.dim() == 0 or len(parameter) != module.experts:
                raise UserError(
                    f"experts: '{name}.{own}' has the shape {list(parameter.shape)}; allowed: parameters of "
                    f"{module.experts} experts, stacked in the first dimension; others belong to a module within it"
                )
        yield name, module


def count(model: nn.Module) -> int:
    """The number that processes must divide, so that each has as many experts of every mixture; 0 without mixtures."""
    return math.gcd(*(module.experts for _, module in mixtures(model)))


def shard_own(module: nn.Module, mesh: DeviceMesh, places: Mapping[str, Placement] | None = None) -> None:
    """Keep this rank's share of a module's own parameters: by their `places`, or as stacked experts.

    What is in modules within it stays whole, such as what all experts share.
    """
    for name, parameter in list(module.named_parameters(recurse=False)):
        shard = distribute_tensor(parameter.detach(), mesh, [places[name] if places else Shard(0)])
        module.register_parameter(name, nn.Parameter(shard, parameter.requires_grad))


class SplitExperts(ParallelStyle):
    """A mixture of experts, split by experts. Each rank computes the tokens of its experts; the outputs are added."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        shard_own(module, device_mesh)
        module.compute = partial(self._compute, module, device_mesh)  # type: ignore[assignment]
        return module

    @staticmethod
    def _compute(module: Any, mesh: DeviceMesh, tokens: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """The experts' outputs (T, width) for tokens (T, width) sorted by expert; `counts` (E,) are tokens of each."""
        counts_of_ranks, rank = counts.view(mesh.size(), -1), mesh.get_local_rank()
        tokens_of_ranks = counts_of_ranks.sum(1).tolist()
        before, mine, after = sum(tokens_of_ranks[:rank]), tokens_of_ranks[rank], sum(tokens_of_ranks[rank + 1 :])
        # The gradient of the tokens is the sum over all ranks, each with the gradient from its own experts.
        local = DTensor.from_local(tokens, mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        outputs = module.run_experts(local[before : before + mine], counts_of_ranks[rank])
        summand = DTensor.from_local(F.pad(outputs, (0, 0, before, after)), mesh, [Partial()])
        return summand.redistribute(placements=[Replicate()]).to_local()
