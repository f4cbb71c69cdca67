"""A model of which every sample is computed by itself: without dropout, and with all buffers frozen.

Dropout draws other masks in other processes. BatchNorm's statistics, and whatever else a forward pass keeps in buffers
(a codebook, the vectors of spectral norm), are those of each replica's slice: by definition none of them is the same
training on several replicas.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from relay.task.draws import Draws
from relay.task.modes import FunctionMode

DROPOUT_OFF = "dropout is switched off in the gate"
NORMS_FROZEN = "BatchNorm's statistics are frozen in the gate; in training they are those of each replica"
BUFFERS_FROZEN = "buffers that it changes ({}) are frozen in the gate; in training each replica has its own"
DRAWS_FIXED = "its random numbers are the same for every sample in the gate"
MOVED = 0.01
UNKNOWN = "it draws random numbers by {}, which no proof can repeat"


@dataclass
class Stilled:
    """What was done to a model, and what has to be around it whenever it computes.

    `draws`: it draws all the same, by functions or inside of others. `functional_norms`: it calls `F.batch_norm`.
    `unknown` are operations that draw and that nothing replaces. `buffers` are changed by the forward pass, and frozen;
    `moving` are those that another module changes than the one that holds them, which cannot be frozen. `unsaved` are
    those of `buffers` that no checkpoint holds.
    """

    notes: list[str] = field(default_factory=list)
    draws: bool = False
    functional_norms: bool = False
    unknown: set[str] = field(default_factory=set)
    buffers: tuple[str, ...] = ()
    moving: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()

    @property
    def unrepeatable(self) -> str:
        """Why a divided batch is another training, whatever the model computes of it; '' for nothing."""
        if self.unknown:
            names = ", ".join(sorted(self.unknown))
            return f"the model draws random numbers by {names}, which differ between processes and cannot be fixed"
        if self.unsaved:
            return (
                f"the forward pass changes buffers that no checkpoint holds ({', '.join(self.unsaved)}), so that each "
                "job would begin with others; allowed: register_buffer without persistent=False"
            )
        reason = f"a module changes buffers of another one ({', '.join(self.moving)})"
        return f"{reason}: they follow from each process's part of the batch" if self.moving else ""


def still(model: nn.Module, compute: Callable[[nn.Module], object]) -> Stilled:
    """Switch dropout off and freeze all buffers; BatchNorm's on the statistics of the batch that `compute` computes.

    A deep network so stays in a range in which it can be trained.
    """

    def computed(whole: nn.Module) -> None:
        """With gradients, as in training: some models take their own in a forward pass."""
        with torch.enable_grad():
            compute(whole)
        for written in (each for each in whole.buffers() if each.grad_fn is not None):
            written.detach_()

    stilled, draws, norms = Stilled(), Draws(), FrozenNorms()
    stilled.notes += [DROPOUT_OFF] if _without_dropout(model) else []
    frozen = [_frozen(norm) for norm in model.modules() if isinstance(norm, (_BatchNorm, _InstanceNorm))]
    for norm in (norms, *frozen):
        norm.measures = True
    with torch.no_grad(), draws.fixed(), norms:
        computed(model)
        for norm in (norms, *frozen):
            norm.measures = False
        stilled.buffers = _changed(model, computed)
        for module in {name.rpartition(".")[0] for name in stilled.buffers}:
            _hold(model.get_submodule(module))
        stilled.moving = _changed(model, computed) if stilled.buffers else ()
        stilled.unsaved = tuple(name for name in stilled.buffers if name not in model.state_dict())
    stilled.draws, stilled.functional_norms, stilled.unknown = bool(draws.drawn), norms.seen, draws.unknown
    stilled.notes += [NORMS_FROZEN] if any(isinstance(norm, _BatchNorm) for norm in frozen) or norms.seen else []
    stilled.notes += [BUFFERS_FROZEN.format(", ".join(stilled.buffers))] if stilled.buffers else []
    stilled.notes += [DRAWS_FIXED] if stilled.draws else []
    stilled.notes += [UNKNOWN.format(name) for name in sorted(stilled.unknown)]
    return stilled


def _without_dropout(model: nn.Module) -> bool:
    """Switch off what modules show: their probabilities, also where dropout is a number of a larger module's.

    Probabilities to keep a unit are left: such dropout draws alike for every sample.
    """
    changed = False
    for module in model.modules():
        names = [
            n for n, value in vars(module).items() if isinstance(value, float) and 0 < value <= 1 and "keep" not in n
        ]
        for name in names:
            if "drop" in name or isinstance(module, nn.modules.dropout._DropoutNd):
                setattr(module, name, 0.0)
                changed = True
    return changed


class _Frozen(_BatchNorm):
    """Mixed into a layer of BatchNorm: it uses its running statistics also in training, and never moves them.

    A layer without any keeps those of one batch, outside of its buffers. A class with a forward pass of its own, such
    as with an activation, computes that: `super().forward` comes here, and `FrozenNorms` sees `F.batch_norm`.
    """

    measures: bool
    own: list[torch.Tensor]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(N, C, ...) to the same shape."""
        if self.measures:
            for kept, measured in zip(self.own, _statistics(inputs), strict=True):
                kept.copy_(measured)
        running = zip((self.running_mean, self.running_var), self.own, strict=True)
        mean, variance = (kept.to(inputs) if each is None else each for each, kept in running)
        return F.batch_norm(inputs, mean, variance, self.weight, self.bias, False, 0.0, self.eps)


def _frozen(norm: Any) -> Any:
    """The same object, of a class derived from its own."""
    kind = type(norm)
    if isinstance(norm, _InstanceNorm):  # it normalises each sample by itself, but its statistics are the batch's
        norm.momentum = 0.0
        return norm
    bases = (_Frozen, kind) if kind.forward is nn.SyncBatchNorm.forward else (kind, _Frozen)
    norm.__class__ = type(kind.__name__, bases, {})
    running = (norm.running_mean, norm.running_var)
    norm.__dict__["own"] = [
        buffer if buffer is not None else torch.zeros(norm.num_features, dtype=torch.float64) for buffer in running
    ]
    return norm


def _changed(model: nn.Module, compute: Callable[[nn.Module], object]) -> tuple[str, ...]:
    """The names of the buffers that a forward pass changes, with parameters that a step has moved. All are put back."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if not before:
        return ()
    values = [(each, each.detach().clone()) for each in model.parameters() if each.is_floating_point()]
    for parameter, _ in values:  # an average of them is the same only at first
        parameter.add_(MOVED)
    compute(model)
    for parameter, value in values:
        parameter.copy_(value)
    now = dict(model.named_buffers())
    # Statistics of a sample that is not finite are NaN before and after.
    names = tuple(name for name, kept in before.items() if not torch.equal(now[name].nan_to_num(), kept.nan_to_num()))
    for name in names:
        now[name].copy_(before[name])
    return names


def _hold(module: nn.Module) -> None:
    """Let a module compute with a copy of its buffers, which it may change: the next pass begins with the same."""
    kind = type(module)

    def forward(self: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        kept = dict(self._buffers)
        self._buffers.update({name: None if each is None else each.clone() for name, each in kept.items()})
        try:
            return kind.forward(self, *arguments, **keywords)
        finally:
            self._buffers.update(kept)

    module.__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__, "forward": forward})


def _statistics(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and variance of each channel."""
    dimensions = [d for d in range(inputs.dim()) if d != 1]
    return inputs.detach().mean(dimensions), inputs.detach().var(dimensions, correction=0)


class FrozenNorms(FunctionMode):
    """The same for `F.batch_norm`, where a model calls it: `seen` tells. Its statistics have to be buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.measures = False, False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a normalisation gives by its statistics, and any other function by itself."""
        if func is not F.batch_norm:
            return func(*args, **kwargs)
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
        named = dict(zip(names, args, strict=False)) | dict(kwargs)
        if not named.get("training") or named["running_mean"] is None:
            return func(*args, **kwargs)
        self.seen = True
        if self.measures:
            running = named["running_mean"], named["running_var"]
            for kept, measured in zip(running, _statistics(named["input"]), strict=True):
                kept.copy_(measured)
        return func(**named | {"training": False})
