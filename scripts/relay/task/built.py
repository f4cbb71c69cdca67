"""A model as a user's file builds it: whether it can be trained here, and without what does not belong to it."""

from types import MethodType

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from relay.base.errors import UserError

# Modules that are none of a model, by what they are, and what takes their place.
UNFIT = {
    AveragedModel: ("an average of weights", "the model without it; steps update only weights that are trained"),
    torch.jit.ScriptModule: ("what torch.jit made", "the module in Python, into which proofs can look"),
    nn.DataParallel: ("an nn.DataParallel", "the module in it; strategies decide which devices compute"),
}


def check(model: nn.Module, task: str) -> None:
    """Raise UserError for a model that cannot be trained here."""
    for name, module in model.named_modules():
        for what, allowed in (why for kind, why in UNFIT.items() if isinstance(module, kind)):
            where = f"{what} ({name or 'the model itself'})"
            raise UserError(f"task {task}: model() has {where}; allowed: {allowed}")
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise UserError(
                f"task {task}: model() has a get_extra_state ({name or 'the model itself'}), and checkpoints hold "
                "parameters and buffers alone; allowed: buffers (register_buffer)"
            )
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UserError(
                f"task {task}: model() leaves the size of '{name}' open; allowed: modules that know the "
                "sizes of their inputs, such as nn.Linear in place of nn.LazyLinear"
            )
        if parameter.is_complex():
            raise UserError(
                f"task {task}: model() has a complex parameter '{name}'; allowed: real ones; it can be a "
                "real one of shape (…, 2), read by torch.view_as_complex"
            )


def is_compiled(model: nn.Module) -> bool:
    """Whether the model, or a module in it, is compiled."""
    return any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in model.modules())


def plain(model: nn.Module) -> nn.Module:
    """The model without what `torch.compile`, or its own `compile`, has made of it or of its modules.

    Its `state_dict` is torch's own: checkpoints hold parameters and buffers by their names in the model.
    """
    whole: nn.Module = getattr(model, "_orig_mod", model)
    for module in [*whole.modules()]:
        module._modules.update({name: getattr(each, "_orig_mod", each) for name, each in module._modules.items()})
        module._compiled_call_impl = None  # of `module.compile()`
        if type(module).state_dict is not nn.Module.state_dict:
            for name in ("state_dict", "load_state_dict"):
                setattr(module, name, MethodType(getattr(nn.Module, name), module))
    return whole
