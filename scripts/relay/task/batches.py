"""Batches of any structure: tensors in tuples, lists, dicts and dataclasses; the first dimension counts the samples.

In outputs another dimension may: `Along` says which.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution
from torch.utils._pytree import (
    GetAttrKey,
    MappingKey,
    keystr,
    register_pytree_node,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_unflatten,
)

Batch = Any
# The dimension that counts the samples, by the place of a tensor in outputs, such as `outputs[1]`; None where none
# does. Of a tensor that is not named it is that of `outputs`, or the first.
Along = Mapping[str, int | None]
FIRST: Along = {}
OUTPUTS = "outputs"


def leaves(batch: Batch) -> list[torch.Tensor]:
    """The tensors of a batch, in order."""
    return [leaf for leaf in _parts(batch) if isinstance(leaf, torch.Tensor)]


def placed(batch: Batch, name: str = "batch") -> list[tuple[str, Any]]:
    """The parts of a batch, also those that are no tensors, with their places, such as `batch[0]`."""
    return [(place, part) for place, part in _placed(batch, name) if part is not None]


def _placed(batch: Batch, name: str) -> list[tuple[str, Any]]:
    parts = _parts(batch)  # has torch open what is in it
    try:
        return [(f"{name}{keystr(path)}", part) for path, part in tree_flatten_with_path(batch)[0]]
    except ValueError:  # a library has taught torch a class of its own without the names of its parts
        return [(f"{name}, part {number}", part) for number, part in enumerate(parts, 1)]


def count(batch: Batch) -> int:
    """The number of samples."""
    return len(leaves(batch)[0])


def each(change: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> Batch:
    """The batch with each of its tensors changed."""
    parts, structure = _parts(batch), tree_flatten(batch)[1]
    return tree_unflatten([change(part) if isinstance(part, torch.Tensor) else part for part in parts], structure)


def same(one: Batch, other: Batch) -> bool:
    """Whether two batches, or samples, hold the same, bit for bit; NaN is the same as NaN."""
    first, second = tree_leaves(one), tree_leaves(other)
    return len(first) == len(second) and all(map(_same, first, second))


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind in "fc")
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def taken(batch: Batch, positions: Any) -> Batch:
    """The samples at these positions: a slice, or a tensor of indices."""
    return each(lambda tensor: tensor[positions], batch)


def chunks(batch: Batch, pieces: int) -> list[Batch]:
    """The batch in at most so many pieces, divided as `torch.chunk` divides."""
    size = -(-count(batch) // pieces)
    return [taken(batch, slice(start, start + size)) for start in range(0, count(batch), size)]


def moved(batch: Batch, device: torch.device) -> Batch:
    """The batch on a device."""
    return each(lambda tensor: tensor.to(device, non_blocking=True), batch)


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    """The batch with its floating-point tensors in this type; complex ones have parts of this type."""
    return each(partial(_of_type, dtype=dtype), batch)


def with_channels_last(batch: Batch) -> Batch:
    """The batch with the channels of each pixel of its pictures side by side in memory."""
    return each(lambda part: part.contiguous(memory_format=torch.channels_last) if pictures(part) else part, batch)


def pictures(tensor: torch.Tensor) -> bool:
    """Whether it is (N, C, H, W) of floating-point numbers. With one channel alone, both orders are the same."""
    return tensor.dim() == 4 and tensor.shape[1] > 1 and tensor.is_floating_point()


def model_of_type(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The model with its parameters and buffers in this type. `nn.Module.to` would drop imaginary parts of buffers."""
    return model._apply(partial(_of_type, dtype=dtype))


def _of_type(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def joined(parts: list[Batch], samples: Sequence[int] | None = None, along: Along = FIRST) -> Batch:
    """Several batches, or outputs, as one. What has no dimensions, such as a loss, is the mean over their samples.

    Of a tensor in which no dimension counts the samples, the first part's stands.
    `samples` are each part's number; None: as the first tensor that counts them tells. Where there is no such tensor,
    the parts weigh alike.
    """
    if along == {OUTPUTS: None} and isinstance(parts[0], list):  # a tensor for each sample
        return [each for part in parts for each in part]
    columns = list(zip(*(_parts(part) for part in parts), strict=True))
    counting, structure = _counting(parts[0], along), tree_flatten(parts[0])[1]
    if samples is None:
        counts = (_counts(column, dimension) for column, dimension in zip(columns, counting, strict=True))
        samples = next(filter(None, counts), [1] * len(parts))
    leaves = [_joined(column, samples, dimension) for column, dimension in zip(columns, counting, strict=True)]
    return tree_unflatten(leaves, structure)


def _counts(column: tuple[Any, ...], dimension: int | None) -> list[int]:
    """How many samples each of these tensors has; empty where they do not tell."""
    if dimension is None or not isinstance(column[0], torch.Tensor) or not column[0].dim():
        return []
    return [tensor.shape[dimension] for tensor in column]


def _joined(column: tuple[Any, ...], samples: Sequence[int], dimension: int | None) -> Any:
    if not isinstance(column[0], torch.Tensor):
        return column[0]
    if column[0].dim():
        return column[0] if dimension is None else torch.cat(column, dimension)
    return torch.stack([value * (weight / sum(samples)) for value, weight in zip(column, samples, strict=True)]).sum()


def first(outputs: Batch, wanted: int, samples: int, along: Along = FIRST) -> Batch:
    """What of the outputs for so many samples belongs to the first ones; a sample may have several rows."""
    parts, structure = _parts(outputs), tree_flatten(outputs)[1]

    def narrowed(part: Any, dimension: int | None) -> Any:
        if dimension is None or not isinstance(part, torch.Tensor):
            return part
        return part.narrow(dimension, 0, part.shape[dimension] * wanted // samples)

    return tree_unflatten(list(map(narrowed, parts, _counting(outputs, along))), structure)


def of_samples(outputs: Batch, along: Along = FIRST) -> list[torch.Tensor]:
    """The tensors of outputs in which a dimension counts the samples, that one first; and those without dimensions."""
    pairs = zip(_parts(outputs), _counting(outputs, along), strict=True)
    tensors = [(part, dimension) for part, dimension in pairs if isinstance(part, torch.Tensor)]
    return [part.movedim(dimension, 0) if part.dim() else part for part, dimension in tensors if dimension is not None]


def _counting(outputs: Batch, along: Along) -> list[int | None]:
    """For each part of outputs, the dimension that counts the samples."""
    if not along:
        return [0] * len(_parts(outputs))
    return [along.get(place, along.get(OUTPUTS, 0)) for place, _ in _placed(outputs, OUTPUTS)]


def _parts(batch: Batch) -> list[Any]:
    """What a batch is made of, in order. Dataclasses, distributions and further mappings are opened, once known."""
    parts = tree_leaves(batch)
    closed = {type(part) for part in parts if _opens(part)}
    for kind in closed:
        register_pytree_node(kind, _opened, _remade, flatten_with_keys_fn=_keyed)
    return _parts(batch) if closed else parts


def opened(value: Any) -> Any:
    """The value; torch knows what is in its dataclasses, distributions and mappings from now on."""
    _parts(value)
    return value


def _opens(part: Any) -> bool:
    return isinstance(part, Mapping | Distribution) or (is_dataclass(part) and not isinstance(part, type))


def _opened(whole: Any) -> tuple[list[Any], tuple[type, tuple[str, ...]]]:
    kind, whole = type(whole), vars(whole) if isinstance(whole, Distribution) else whole
    held = whole if isinstance(whole, Mapping) else {field.name: getattr(whole, field.name) for field in fields(whole)}
    return list(held.values()), (kind, tuple(held))


def _keyed(whole: Any) -> tuple[list[tuple[Any, Any]], tuple[type, tuple[str, ...]]]:
    parts, context = _opened(whole)
    key = MappingKey if isinstance(whole, Mapping) and not is_dataclass(whole) else GetAttrKey
    return [(key(name), part) for name, part in zip(context[1], parts, strict=True)], context


def _remade(parts: Iterable[Any], context: tuple[Any, tuple[str, ...]]) -> Any:
    kind, names = context
    held = dict(zip(names, parts, strict=True))
    if issubclass(kind, Mapping):
        return kind(**held) if hasattr(kind, "__dataclass_fields__") else kind(held)  # Hugging Face's are both
    if issubclass(kind, Distribution) and held["_batch_shape"]:  # of as many samples as its parts have
        shapes = [getattr(part, "_batch_shape", getattr(part, "shape", ())) for part in held.values()]
        samples = next((shape[0] for shape in shapes if shape), held["_batch_shape"][0])
        held["_batch_shape"] = torch.Size([samples, *held["_batch_shape"][1:]])
    whole = object.__new__(kind)  # whatever its `__init__` takes
    for name, part in held.items():
        object.__setattr__(whole, name, part)
    return whole
