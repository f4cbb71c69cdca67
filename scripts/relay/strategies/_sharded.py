"""What FSDP lacks: averages over MPI, over gloo on older versions of torch, and of scalars; weights that stay where it
puts them; replicas with any number of backward passes in a step; losses that read parameters."""

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from relay.spec.versions import release
from relay.task.modes import FunctionMode

try:
    from torch.distributed._composable.replicate_with_fsdp import replicate
except ImportError:
    replicate = None  # type: ignore[assignment]

DIVIDES = release(torch.__version__) >= (2, 13)
REPLICATES = replicate is not None


def sum_and_divide(module: FSDPModule, mesh: DeviceMesh) -> None:
    """Let a module's gradients be summed by the backend and divided by FSDP, where the backend has no averages.

    FSDP asks for an average in float32 and bfloat16. MPI has none. torch 2.8's gloo sums, without a word: gradients are
    too large by the number of processes. torch 2.13's was seen to divide.
    """
    backend = mesh.get_group(0)._get_backend(torch.device(mesh.device_type)).name()
    if backend == "mpi" or (backend == "gloo" and not DIVIDES):
        module.set_force_sum_reduction_for_comms(True)


def refuse_hooks(module: nn.Module) -> None:
    """Raise RuntimeError where a hook waits for a parameter's gradient: it is lost where a shard takes its place.

    No UserError: the task is right, and the gate strikes out what cannot train it.
    """
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise RuntimeError(
                f"{name} has a hook for its gradient, which is lost where parameters are sharded; train it with ddp, "
                "or change the gradients in step() of an optimiser of your own"
            )


class WholeNumbers(FunctionMode):
    """For a loss that reads divided parameters, as one with a penalty on weights: each number made of one is whole."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a function gives; a single number as the sum over the ranks' parts."""
        result = func(*args, **kwargs)
        return result.full_tensor() if isinstance(result, DTensor) and not result.dim() else result


def kept_whole(module: nn.Module, mesh: DeviceMesh) -> set[nn.Parameter]:
    """Make a module ready for FSDP. Raises RuntimeError as `refuse_hooks` does.

    Returns its parameters without dimensions, which FSDP refuses. They stay on every rank, on the mesh's device, and
    their gradients are averaged. A gradient is averaged after each backward pass that adds to it: what was averaged
    before is the same on all ranks, so that the mean of the sum is the sum of the means.
    """
    refuse_hooks(module)
    # FSDP puts gathered weights in the place of shards. On CUDA, a recurrent layer of torch's then lays them into one
    # buffer for cuDNN, and would go on computing with these values: what is gathered later goes where FSDP knows them.
    for each in module.modules():
        if isinstance(each, nn.RNNBase):
            each.flatten_parameters = lambda: None  # type: ignore[method-assign]

    def average(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        for dimension in range(mesh.ndim):
            dist.all_reduce(parameter.grad, group=mesh.get_group(dimension))
        parameter.grad /= mesh.size()

    scalars = {parameter for parameter in module.parameters() if parameter.dim() == 0}
    for scalar in scalars:
        scalar.data = scalar.data.to(mesh.device_type)
        scalar.register_post_accumulate_grad_hook(average)
    return scalars


def replicated(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let the replicas of a module average its gradients, in place.

    `mesh` has the replicas in its first dimension, and where REPLICATES is false a second dimension of size 1: older
    versions of torch have no `replicate` on top of FSDP, and shards over groups of one process do the same.
    """
    whole = kept_whole(module, mesh)
    ignored: dict[str, Any] = {"ignored_params": whole} if whole else {}  # some versions' `replicate` has it not
    sum_and_divide((replicate if REPLICATES else fully_shard)(module, mesh=mesh, **ignored), mesh)
