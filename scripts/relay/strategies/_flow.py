"""Which matrices of a model follow each other, so that what is between them can stay split over processes.

The outputs of a first matrix, split by columns, need not be put together where nothing but functions of each single
number stands between them and a second matrix, split by rows. That is seen while a copy of the model runs once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from relay.task.calls import Readings, tensors_in

# Functions of each number alone, by name, as torch.*, torch.nn.functional.* and Tensor.* have them. Dropout is not
# among them: ranks that draw the same random numbers would drop the same features of their shards.
ELEMENTWISE = frozenset(
    """abs celu clamp clone contiguous div double elu erf exp float gelu hardsigmoid hardswish hardtanh leaky_relu
    logsigmoid mish mul neg pow relu relu6 rsub selu sigmoid silu softplus softsign sqrt square sub tanh to add
    __add__ __iadd__ __imul__ __isub__ __mul__ __neg__ __pow__ __radd__ __rmul__ __rsub__ __sub__ __truediv__
    add_ elu_ hardtanh_ leaky_relu_ mul_ relu_ selu_ sigmoid_ silu_ tanh_""".split()  # noqa: SIM905  # quotes around each would hide them
)


class Flow(Readings):
    """Where the outputs of matrices go in a forward pass. Matrices are those that the model calls."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.matrices = {name: module for name, module in self.modules.items() if is_matrix(module)}
        self.arrivals: list[tuple[frozenset[str], str]] = []  # whose numbers a matrix gets: nobody's, if they are whole
        self.groups: list[frozenset[str]] = []  # matrices whose numbers were combined
        self.ended_in: set[str] = set()  # matrices whose numbers something needs together
        self.head: str | None = None  # the matrix whose outputs are the model's
        self._sources: dict[int, tuple[torch.Tensor, frozenset[str]]] = {}  # kept alive, so that ids are not used again
        self._unfit: set[str] = set()

    def begun(self, name: str, args: Sequence[Any]) -> None:
        super().begun(name, args)
        if name not in self.matrices:
            return
        if len(args) == 1 and isinstance(args[0], torch.Tensor):
            self.arrivals.append((self._of(args[0]), name))
        else:
            self._unfit.add(name)

    def ended(self, name: str, outputs: Any) -> None:
        super().ended(name, outputs)
        if name in self.matrices:
            self._sources[id(outputs)] = outputs, frozenset({name})

    def computed(self, function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
        super().computed(function, args, kwargs, result)
        if self.running and self.running[-1] in self.matrices:
            return
        given = [self._of(tensor) for tensor in tensors_in((args, kwargs))]
        sources, results = frozenset().union(*given), tensors_in(result)
        name = getattr(function, "__name__", "")
        if not sources or not (results or name == "__setitem__"):  # a shape or a type was asked for
            return
        if all(given) and (name in ELEMENTWISE or _drops_nothing(name, args, kwargs)):
            self.groups.append(sources)
            self._sources |= {id(tensor): (tensor, sources) for tensor in results}
        else:
            self.ended_in |= sources

    def returned(self, outputs: Any) -> None:
        sources = frozenset[str]().union(*map(self._of, tensors_in(outputs)))
        self.ended_in |= sources
        if isinstance(outputs, torch.Tensor) and len(sources) == 1:
            (name,) = sources
            self.head = name if self.fit(name) and not any(name in group for group in self.groups) else None

    def fit(self, name: str) -> bool:
        """Whether a layer can be split at all: only its own call reads it, and it has no second name."""
        own = dict(self.modules[name].named_parameters())
        tied = any(len(self._names[id(parameter)]) > 1 for parameter in own.values())
        read = [self.within.get(f"{name}.{each}") for each in own]
        return name not in self._unfit and not tied and all(within is not None and name in within for within in read)

    def pairs(self, ranks: int | None, among: Iterable[str]) -> tuple[dict[str, str], list[str]]:
        """Styles of the matrices that form pairs, "column" or "row"; and the names of the others.

        `ranks` must divide what is between them; None: any number does.
        """
        styles: dict[str, str] = {}
        allowed = set(among)
        called = [name for name in dict.fromkeys(name for _, name in self.arrivals) if name in allowed]
        for name in called:
            firsts = self._combined_with(name)
            seconds = {second for sources, second in self.arrivals if sources & firsts}
            between = {widths(self.matrices[first])[1] for first in firsts}
            pair = (
                seconds
                and not (firsts | seconds) - allowed
                and not (firsts | seconds) & styles.keys()
                and not firsts & (seconds | self.ended_in)
                and all(sources and sources <= firsts for sources, second in self.arrivals if second in seconds)
                and len(between) == 1
                and not any(width % (ranks or 1) for width in between)
            )
            if pair:
                styles |= dict.fromkeys(firsts, "column") | dict.fromkeys(seconds, "row")
        return styles, [name for name in called if name not in styles]

    def _combined_with(self, name: str) -> frozenset[str]:
        """The matrices whose outputs are combined with this one's, number by number, and itself."""
        combined, before = frozenset({name}), frozenset[str]()
        while combined != before:
            before, combined = combined, combined.union(*(group for group in self.groups if group & combined))
        return combined

    def _of(self, tensor: torch.Tensor) -> frozenset[str]:
        """The matrices whose numbers a tensor has, each changed by itself at most; none for all other tensors."""
        return self._sources[id(tensor)][1] if id(tensor) in self._sources else frozenset()


def _drops_nothing(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether it is dropout with a probability of 0."""
    return name == "dropout" and (args[1] if len(args) > 1 else kwargs.get("p", 0.5)) == 0


def is_matrix(module: nn.Module) -> bool:
    """Whether a module computes as nn.Linear does, with a weight of its own: not one that is computed in each call."""
    kind = getattr(type(module), "recomputed", type(module))
    linear = isinstance(module, nn.Linear) and kind.forward is nn.Linear.forward
    return (linear or is_transposed(module)) and set(module._parameters) == {"weight", "bias"} and not module._modules


def is_transposed(module: nn.Module) -> bool:
    """Whether a module is transformers' Conv1D: inputs (..., inputs) times a weight (inputs, outputs), as in GPT-2."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils" for kind in type(module).__mro__
    )


def widths(module: Any) -> tuple[int, int]:
    """The numbers of inputs and of outputs of a matrix."""
    outputs, inputs = module.weight.shape
    return (outputs, inputs) if is_transposed(module) else (inputs, outputs)
