"""How a model is split over the ranks of a tensor-parallel group: as its user or its modules say, or as is seen of it.

Of two consecutive matrices, the first is split by columns and the second by rows. The pair then needs only one
exchange (Shoeybi et al. 2019, "Megatron-LM", section 3). Convolutions and norms stay whole on every rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel.style import ParallelStyle

from relay.base.errors import UserError
from relay.strategies._experts import SplitExperts, is_mixture, shard_own
from relay.strategies._flow import Flow, is_transposed, widths


class Column(ColwiseParallel):
    """torch's style for either kind of matrix, and for tables."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        return _distributed(self, module, device_mesh, {"weight": Shard(1), "bias": Shard(0)})


class Row(RowwiseParallel):
    """torch's style for either kind of matrix."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if not is_transposed(module):
            return super()._apply(module, device_mesh)
        self.desired_input_layouts = (Shard(-1),)
        return _distributed(self, module, device_mesh, {"weight": Shard(0), "bias": Replicate()})


def _distributed(style: Any, module: nn.Module, mesh: DeviceMesh, places: dict[str, Any]) -> nn.Module:
    shard_own(module, mesh, places)
    taken = partial(style._prepare_input_fn, style.input_layouts, style.desired_input_layouts)
    given = partial(style._prepare_output_fn, style.output_layouts, style.use_local_output)
    return distribute_module(module, mesh, None, taken, given)


# Outputs of "column" stay split, and "row" takes such inputs. The others have whole inputs and outputs; those of
# "classes" stay split, as a DTensor, for a loss that takes it.
STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "column": Column,
    "row": Row,
    "column, whole": lambda: Column(output_layouts=Replicate()),
    "row, whole": lambda: Row(input_layouts=Replicate()),
    "embedding": lambda: Column(output_layouts=Replicate()),
    "experts": SplitExperts,
    "classes": lambda: Column(output_layouts=Shard(-1), use_local_output=False),
}
FOR_USERS = tuple(style for style in STYLES if style != "classes")


class Unseen(UserError):
    """The model could not be run, so that nothing is known of what can be split."""


@dataclass(frozen=True)
class TensorPlan:
    """The style of each module that is split, by its name.

    `share` is the part of the parameters that are split, as `_share` has it. Ranks must divide each number of
    `divisible`, by its name.
    """

    styles: Mapping[str, str]
    share: float
    divisible: tuple[tuple[str, int], ...]


def plan_of(
    model: nn.Module,
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    ranks: int | None = None,
    *,
    own: Mapping[str, str] | None = None,
    classes_sharded: bool = False,
) -> TensorPlan:
    """The plan for so many ranks; None: for any number. `arguments` and `keywords` are those of a call of the model.

    `own` is the user's plan, which is taken as it is. Else modules may state the styles of their children, in an
    attribute `tensor_plan`, and what they do not hold is split as its calls allow. With `classes_sharded`, the outputs
    stay split over the classes. Raises Unseen where the model cannot be run here; UserError for a plan that does not
    fit the model, where ranks would get unequal numbers of heads, experts or columns, and where `classes_sharded` is
    set but the outputs are not those of a matrix.
    """
    stated = dict(own) if own is not None else dict(_stated(model))
    _check_styles(model, stated, "tensor_plan(model)" if own is not None else "tensor_plan")
    styles = dict(stated)
    if own is None or classes_sharded:
        flow = Flow.of(model, arguments, keywords)
        if flow is None:
            raise Unseen(
                f"tensor parallelism: {type(model).__name__} cannot be run here to find what can be split; allowed: a "
                "plan by the task's method tensor_plan(model)"
            )
        if classes_sharded:
            styles[_head(model, flow)] = "classes"
        if own is None:
            styles |= _found(model, flow, styles, ranks)
    # In the model's order on all ranks, because splitting is collective.
    styles = {name: styles[name] for name, _ in model.named_modules() if name in styles}
    plan = TensorPlan(styles, _share(model, styles), _divisible(model, stated))
    for name, count in plan.divisible:
        if count % (ranks or 1):
            raise UserError(f"tensor parallelism: {ranks} processes do not divide {count} {name}")
    return plan


def _stated(model: nn.Module) -> Iterator[tuple[str, str]]:
    """What modules state about their children: each child's name in the model, and its style."""
    for place, module in model.named_modules():
        for name, style in getattr(module, "tensor_plan", {}).items():
            if hasattr(module, name):
                yield f"{place}.{name}" if place else name, style


def _check_styles(model: nn.Module, styles: Mapping[str, str], origin: str) -> None:
    """Raise UserError for a name that the model has not, an unknown style, and a style that a module cannot have."""
    modules = dict(model.named_modules())
    for name, style in styles.items():
        if name not in modules:
            raise UserError(f"{origin}: '{name}' is no module of {type(model).__name__}")
        if style not in FOR_USERS:
            raise UserError(f"{origin}: '{style}' of '{name}' is not allowed; allowed: {' | '.join(FOR_USERS)}")
        module = modules[name]
        if style == "experts" and not is_mixture(module):
            raise UserError(
                f"{origin}: '{name}' ({type(module).__name__}) is no mixture of experts; allowed: a module with "
                "`experts`, `compute` and `run_experts`"
            )
        kinds = {"experts": nn.Module, "embedding": nn.Embedding}
        if not isinstance(module, kinds.get(style, nn.Linear)) and not (style not in kinds and is_transposed(module)):
            allowed = kinds.get(style, nn.Linear).__name__
            raise UserError(f"{origin}: '{name}' is a {type(module).__name__}; allowed for '{style}': nn.{allowed}")


def _found(model: nn.Module, flow: Flow, stated: Mapping[str, str], ranks: int | None) -> dict[str, str]:
    """The styles of matrices and tables about which nothing is stated."""
    speaking = [name for name, module in model.named_modules() if getattr(module, "tensor_plan", None)]
    free = [
        name
        for name in flow.modules
        if name not in stated and not any(name.startswith(f"{place}." if place else "") for place in speaking)
    ]
    styles, alone = flow.pairs(ranks, [name for name in free if name in flow.matrices and flow.fit(name)])
    for name in alone:
        inputs, outputs = widths(flow.matrices[name])
        if min(inputs, outputs) >= (ranks or 1):  # along its larger dimension, with whole inputs and outputs
            styles[name] = "column, whole" if outputs >= inputs else "row, whole"
    return styles | {name: "embedding" for name in free if _is_plain(flow.modules[name], ranks or 1) and flow.fit(name)}


def _is_plain(module: nn.Module, ranks: int) -> bool:
    """Whether it is a table that lookups do not change, with a column for each rank."""
    if not isinstance(module, nn.Embedding) or type(module).forward is not nn.Embedding.forward:
        return False
    return module.max_norm is None and not module.sparse and module.embedding_dim >= ranks


def _head(model: nn.Module, flow: Flow) -> str:
    """The matrix that gives the logits. Raises UserError where the outputs are none of a matrix."""
    if flow.head is None:
        raise UserError(
            f"loss_parallel: True is not allowed; the outputs of {type(model).__name__} are not those of an nn.Linear, "
            "unchanged; allowed: False"
        )
    return flow.head


def _divisible(model: nn.Module, stated: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """What ranks must divide: heads, experts, and columns that stay split. Multiples of another one are left out."""
    counts: dict[int, str] = {}
    for name, style in stated.items():
        module = model.get_submodule(name)
        owner = model.get_submodule(name.rpartition(".")[0])
        if style == "experts":
            counts.setdefault(int(module.experts), f"experts ({name})")  # type: ignore[arg-type]
        elif style == "column":
            outputs = widths(module)[1]
            head = getattr(owner, "head_width", None) or getattr(owner, "head_dim", None)
            if isinstance(head, int) and outputs % head == 0:
                counts.setdefault(outputs // head, f"attention heads ({name})")
            else:
                counts.setdefault(outputs, f"columns ({name})")
    least = [count for count in counts if not any(count != other and count % other == 0 for other in counts)]
    return tuple((counts[count], count) for count in least)


def _share(model: nn.Module, styles: Mapping[str, str]) -> float:
    """The part of the model's parameters that are split: of all, or of those that are trained, where that is less."""
    split = set[int]()
    for name, style in styles.items():
        kept = ("bias",) if style.startswith("row") else ()
        own = model.get_submodule(name).named_parameters(recurse=style != "experts")
        split |= {id(parameter) for each, parameter in own if each not in kept}
    shares = []
    for every in ([*model.parameters()], [each for each in model.parameters() if each.requires_grad]):
        divided = sum(each.nbytes for each in every if id(each) in split)
        shares += [divided / sum(each.nbytes for each in every)] if every else []
    return min(shares, default=0.0)
