"""Random draws that are alike for every sample, so that a training is the same however its batches are divided.

Processes, micro-batches and stages draw other random numbers than one process does for the whole batch. In proofs
each draw is therefore replaced by fixed numbers: they depend on the place within a sample, and not on the sample. All
divisions then draw alike: dropout of any kind, the noise of a VAE, the patches that a masked autoencoder hides.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from relay.chain.generators import generators
from relay.process.generators import alike
from relay.task.modes import OperationMode, arguments_by_name, everywhere

# Its multiples, modulo 1, are spread evenly, and no two of them are equal.
GOLDEN = 0.6180339887498949
# Of so many neighbouring units dropout keeps some. Ranks that share a layer hold multiples of it.
PERIOD = 4
# What is drawn twice alike with a smaller probability is not alike by chance.
LEAST_CHANCE = 1e-12
Named = dict[str, Any]  # arguments of an operation, by their names in its schema


@dataclass(frozen=True)
class Drawn:
    """Random numbers before they were replaced.

    `by` is torch's operation, `kept` the probability with which dropout keeps a unit. `digest` is None where chance
    could draw the same twice, and where the model has a generator of its own.
    """

    by: str
    kept: float | None
    digest: str | None


@dataclass
class Draws:
    """The draws since the last call of `taken`, with digests where they are to be `told_apart`.

    `unknown` are operations for which there are no fixed numbers. A copy of a task keeps the same draws.
    """

    told_apart: bool = False
    drawn: list[Drawn] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)

    def __deepcopy__(self, _memo: object) -> Draws:
        return self

    def taken(self) -> list[Drawn]:
        """What was drawn since the last call."""
        drawn, self.drawn = self.drawn, []
        return drawn

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Replace all draws within, also in threads that are started within. Generators advance as in a training."""
        with ExitStack() as stack:
            stack.enter_context(sdpa_kernel([SDPBackend.MATH]))  # fused kernels draw where nobody sees it
            if torch.cuda.is_available():
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))  # so do those of recurrent layers
            stack.enter_context(everywhere(lambda: _Fixed(self)))
            yield


class _Fixed(OperationMode):
    """Sees every operation; torch marks those that draw. Lets them draw, and writes fixed numbers over the result."""

    def __init__(self, draws: Draws) -> None:
        super().__init__()
        self.draws = draws

    def called(self, func: Any, types: Sequence[type], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation, with fixed numbers where it draws."""
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func._overloadpacket.__name__
        numbers = FIXED.get(name)
        if numbers is None:
            return self._unknown(name, func, args, kwargs)
        result, named = func(*args, **kwargs), arguments_by_name(func, args, kwargs)
        values = result[1] if name == "native_dropout" else result
        if torch._C._current_graph_task_id() == -1:  # not computed again in the backward pass
            digested = self.draws.told_apart and named.get("generator") is None
            # An argument with its default value is not handed over.
            usual = 0.5 if name == "bernoulli_" else None
            chance = 1 - named["p"] if name == "native_dropout" else named.get("p", usual)
            kept = chance if isinstance(chance, float) else None
            self.draws.drawn.append(Drawn(name, kept, _digest(values) if digested else None))
        if values.numel():
            values.copy_(numbers(values, named))
        if name == "native_dropout" and named["train"] is not False:
            result[0].copy_(named["input"] * values / (1 - named["p"]))
        return result

    def _unknown(self, name: str, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Most of these are marked, but draw nothing without dropout."""
        before = generators()
        result = func(*args, **kwargs)
        if not alike(before, generators()):
            self.draws.unknown.add(name)
        return result


def _digest(values: torch.Tensor) -> str | None:
    """A digest of random numbers; None where chance could draw the same twice."""
    most = float((values == values.flatten()[0]).double().mean()) if values.numel() else 1.0
    if (most**2 + (1 - most) ** 2) ** values.numel() >= LEAST_CHANCE:
        return None
    return hashlib.sha256(values.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _place(values: torch.Tensor) -> torch.Tensor:
    """The place of each number within its sample, from 0 on, to be broadcast: along the last dimension that has any.

    The first dimension, and in sequences one more, counts samples.
    """
    dimension = next((d for d in range(values.dim() - 1, 0, -1) if values.shape[d] > 1), None)
    if dimension is None:
        return torch.full((1,) * values.dim(), PERIOD - 1, device=values.device)
    shape = [1] * values.dim()
    shape[dimension] = values.shape[dimension]
    return torch.arange(values.shape[dimension], device=values.device).view(shape)


def _uniform(values: torch.Tensor) -> torch.Tensor:
    """Numbers in 0..1, in float64."""
    return ((_place(values) + 1).double() * GOLDEN) % 1


def _normal(values: torch.Tensor) -> torch.Tensor:
    return math.sqrt(2) * torch.erfinv(2 * _uniform(values) - 1)


def _kept(values: torch.Tensor, kept: float) -> torch.Tensor:
    """Ones and zeros: of each PERIOD units at least one is kept and one is not, unless that is certain."""
    if not 0 < kept < 1:
        return torch.full_like(values, kept)
    dropped = min(max(round(PERIOD * (1 - kept)), 1), PERIOD - 1)
    return _place(values) % PERIOD >= dropped


def _bernoulli(values: torch.Tensor, named: Named) -> torch.Tensor:
    chance: Any = named["p"] if "p" in named else named["self"]
    return _uniform(values) < chance if torch.is_tensor(chance) else _kept(values, chance)


def _integers(values: torch.Tensor, named: Named) -> torch.Tensor:
    low, high = float(named.get("low", named.get("from", 0))), float(named.get("high") or named.get("to") or 2**24)  # type: ignore[arg-type]
    return (low + _uniform(values) * (high - low)).floor()


def _chosen(values: torch.Tensor, named: Named) -> torch.Tensor:
    """The likeliest."""
    likeliest = torch.argsort(named["self"], dim=-1, descending=True, stable=True)
    return likeliest[..., torch.arange(named["num_samples"], device=values.device) % likeliest.shape[-1]]


# What stands in for the random numbers of an operation: a function of the tensor that holds them, and its arguments.
FIXED: dict[str, Callable[[torch.Tensor, Named], torch.Tensor]] = {
    **dict.fromkeys(("rand", "rand_like"), lambda values, _: _uniform(values)),
    "uniform_": lambda values, by: by.get("from", 0.0) + _uniform(values) * (by.get("to", 1.0) - by.get("from", 0.0)),
    **dict.fromkeys(
        ("randn", "randn_like", "normal", "normal_"),
        lambda values, by: by.get("mean", 0.0) + by.get("std", 1.0) * _normal(values),
    ),
    "log_normal_": lambda values, by: (by.get("mean", 1.0) + by.get("std", 2.0) * _normal(values)).exp(),
    "exponential_": lambda values, by: -torch.log1p(-_uniform(values)) / by.get("lambd", 1.0),
    **dict.fromkeys(("randint", "randint_like", "random_"), _integers),
    "randperm": lambda values, _: (
        (torch.arange(len(values), device=values.device) + 1).double() * GOLDEN % 1
    ).argsort(),
    "multinomial": _chosen,
    "bernoulli": _bernoulli,
    "bernoulli_": lambda values, by: _bernoulli(values, {"p": 0.5} | by),
    "native_dropout": lambda values, by: _kept(values, 1 - by["p"]),
}
