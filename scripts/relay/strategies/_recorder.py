"""Recording a model in training and in evaluation, for batches of any shapes."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from relay.process.devices import generators_kept
from relay.strategies._record import Like, Record, Untraceable, Whole, held_by
from relay.strategies._trace import Tracer
from relay.task.calls import copied, emptied, in_mode

LOG = logging.getLogger("torch._subclasses.fake_tensor")  # it gets a traceback of each operation that fails
# Modules of torch's that others are put into: their insides are recorded.
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer)


class Recorder:
    """Records one model, for any inputs, in training and in evaluation. The model itself is not computed or changed.

    `units` are names of modules that are recorded as one call.
    """

    def __init__(self, model: nn.Module, device: torch.device, units: Sequence[str] = ()) -> None:
        self.device, self.leaves = device, set(units)
        self.fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.model = copied(model, {id(tensor): self._fake(tensor) for tensor in held_by(model)})
        for name, module in self.model.named_modules():
            module._compiled_call_impl = None  # compiled calls are out of sight
            whole = type(module).__module__.startswith("torch.nn.") or not any(True for _ in module.children())
            if name and whole and not isinstance(module, CONTAINERS):
                self.leaves.add(name)

    def record(
        self,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        training: bool,
        autocast: torch.dtype | None = None,
    ) -> Record:
        """The calls of a pass in training or evaluation mode. Raises Untraceable."""
        reasons: dict[str, str] = {}
        while True:
            try:
                return self._record(arguments, keywords, training, autocast)
            except Whole as whole:
                if not whole.name or whole.name in self.leaves:
                    raise Untraceable(f"{whole.name or 'the model'}: {reasons.get(whole.name, whole.reason)}") from None
                self.leaves.add(whole.name)
                reasons[whole.name.rpartition(".")[0]] = whole.reason

    def _record(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any], training: bool, autocast: torch.dtype | None
    ) -> Record:
        model = in_mode(copied(self.model, {id(tensor): tensor for tensor in held_by(self.model)}), training)
        precision = torch.autocast(self.device.type, autocast) if autocast else nullcontext()
        stale: dict[int, bool] = {}
        tracers = []
        # A length may be met in the middle of a step, whose modes draw, or count, what is computed.
        quiet = mock.patch.object(LOG, "disabled", True)  # what fails is told, once, by who records
        with quiet, emptied(), _disable_current_modes(), self.fakes, precision, torch.set_grad_enabled(training):
            for _ in range(1 + training):  # the second time shows what the first one has left behind
                given = pytree.tree_map_only(torch.Tensor, self._fake, (tuple(arguments), dict(keywords)))
                tracers.append(Tracer(model, self.device, given, leaves=self.leaves, really=self.really, stale=stale))
                tracers[-1].run()
                stale = tracers[0].left_behind()
        return tracers[0].record

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like this one, without data."""
        with self.fakes:
            fake = Like.of(tensor).empty(self.device)
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, tensor.requires_grad)
        return fake

    def really(self, module: nn.Module, arguments: Any, keywords: Any) -> Any:
        """What a module gives whose calls depend on data: it is computed with zeros. Tensors without data again."""

        def zeros(tensor: torch.Tensor) -> torch.Tensor:
            zero = Like.of(tensor).empty(self.device).zero_()
            return nn.Parameter(zero, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else zero

        with _disable_current_modes(), torch._C.DisableTorchFunction(), generators_kept(self.device):
            copy = copied(module, {id(tensor): zeros(tensor) for tensor in held_by(module)})
            given = pytree.tree_map_only(
                torch.Tensor, lambda t: zeros(t).requires_grad_(t.requires_grad), (arguments, keywords)
            )
            outputs = copy(*given[0], **given[1])

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            return self._fake(tensor.detach()).requires_grad_(tensor.requires_grad).clone()

        return pytree.tree_map_only(torch.Tensor, fake, outputs)
