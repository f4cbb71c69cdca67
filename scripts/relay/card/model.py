"""A task's model, looked at: its parameters, what it calls, and whether it is the same when it is built again."""

import inspect
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from relay.card.draft import Draft
from relay.card.watch import CardObserver
from relay.chain.generators import generators
from relay.process.devices import is_gpu
from relay.process.generators import drawn_from
from relay.spec.labels import several
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask
from relay.task.calls import copied, emptied, in_mode, names_of, on_device
from relay.task.load import in_one_line
from relay.task.places import calling, mistake, of_two_devices, place
from relay.task.split import spread
from relay.task.still import MOVED

META = torch.device("meta")
# A look computes a model of at most so many parameters, and so many operations for a sample; a heavy one by its small
# options where it has some, else with few samples.
MOST_PARAMETERS = 100_000_000
MOST_FLOPS = 2e9
HEAVY_FLOPS = 1e8
FEW_SAMPLES = 3
DRAWING_SEED = 1
ELSEWHERE = {"python": "Python's random", "numpy": "numpy"}  # generators that are not torch's
UNWRAPPED = "model() has what torch.compile made; the module itself is trained, and compiled where the config says so"


class Computable(NamedTuple):
    """A task that can be computed here within seconds: itself, or with its options `small`; with a batch."""

    bound: BoundTask
    model: nn.Module
    again: nn.Module  # built once more
    batch: Batch
    samples: torch.Tensor  # the numbers of the batch's samples


def see(bound: BoundTask, batch: Batch, draft: Draft) -> tuple[nn.Module, Computable | None]:
    """Look at the model with a batch. Returns it, perhaps without values, and what can be computed here.

    That is None where it is too large. Raises UserError.
    """
    meta = _on_meta(bound)
    model = meta if meta is not None else _built(bound, draft.device)
    if bound.unwrapped:
        draft.warn("model", UNWRAPPED)
    elements = sum(parameter.numel() for parameter in model.parameters())
    tied = tuple(tuple(names) for names in names_of(model).values() if len(names) > 1)
    draft.card |= {"parameters": elements, "tied": tied}
    draft.card["batch_norm"] = tuple(name for name, module in model.named_modules() if isinstance(module, _BatchNorm))
    draft.card["synced"] = tuple(n for n, module in model.named_modules() if isinstance(module, nn.SyncBatchNorm))
    watch = None if meta is None else _watched_on_meta(bound, meta, batch, draft)
    if meta is not None and watch is None:
        model = _built(bound, draft.device)
    flops = (watch.flops or 0) // batches.count(batch) if watch else 0
    if elements > MOST_PARAMETERS or flops > (HEAVY_FLOPS if bound.spec.small else MOST_FLOPS):
        if watch is not None:
            watched(watch, batches.count(batch), draft)
        return model, _small(bound, draft.device)
    first = _built(bound, draft.device) if model is meta else model
    few = batches.taken(batch, slice(0, FEW_SAMPLES)) if flops > HEAVY_FLOPS else batch
    samples = spread(len(bound.split("train")), batches.count(batch))[: batches.count(few)]
    return first, Computable(bound, first, _built_again(bound, first, draft.device), few, samples)


def _on_meta(bound: BoundTask) -> nn.Module | None:
    """The model without values; None where it cannot be built so: it reads values that it has made."""
    apart = bound.apart()
    try:
        with META, emptied(), warnings.catch_warnings(action="ignore"):  # weights that are read are not copied there
            model = batches.model_of_type(apart.built(), bound.dtype)
    except Exception:  # whatever it is, the CPU tells whether it is a mistake
        return None
    bound._accepted, bound.unwrapped = apart._accepted, apart.unwrapped
    return model if all(each.device == META for each in model.parameters()) else None


def _built(bound: BoundTask, device: torch.device) -> nn.Module:
    with calling(type(bound.own), "model"):
        return on_device(batches.model_of_type(bound.built(), bound.dtype), device)


def _small(bound: BoundTask, device: torch.device) -> Computable | None:
    """The task with the options that it names for proofs, and a batch of its own."""
    if not bound.spec.small:
        return None
    spec = replace(bound.spec, options={**bound.spec.options, **bound.spec.small})
    small = BoundTask(spec, bound.seed, bound.precision, 1, 1, folder=bound.folder)
    model = _built(small, device)
    if sum(parameter.numel() for parameter in model.parameters()) > MOST_PARAMETERS:
        return None
    with calling(type(small.own), "datasets"):
        batch = batches.moved(small.example(FEW_SAMPLES), device)
    return Computable(small, model, _built_again(small, model, device), batch, torch.arange(FEW_SAMPLES))


def _watched_on_meta(bound: BoundTask, model: nn.Module, batch: Batch, draft: Draft) -> CardObserver | None:
    """What a pass on the meta device calls; None where it cannot be computed without values."""
    watch = CardObserver(in_mode(model, training=True))
    try:
        with watch.watching(), emptied():
            bound.outputs(model, batches.moved(batch, META))
    except Exception as error:
        if of_two_devices(error):
            draft.warnings.append(_of_another_device(bound, error))
        return None
    return watch


def _of_another_device(bound: BoundTask, error: Exception) -> str:
    file = Path(inspect.getfile(type(bound.own)))
    where = in_one_line(error, file).partition(f": {type(error).__name__}")[0]  # its words name the meta device
    return f"{where}: the model joins tensors of two devices, and fails on a GPU; make them on its inputs' device"


def watched(watch: CardObserver, samples: int, draft: Draft, *, flops: bool = True) -> None:
    """Put what was watched of a pass over so many samples onto the card."""
    norms = (*draft.card["batch_norm"], *watch.norms)
    draft.card |= {
        "dropout": tuple(watch.dropout),
        "draws": tuple(watch.draws),
        "differentiates": watch.differentiates,
        "batch_norm": tuple(dict.fromkeys(norms)),
    }
    if flops:
        draft.card["forward_flops"] = None if watch.flops is None else watch.flops // samples


def _built_again(bound: BoundTask, first: nn.Module, device: torch.device) -> nn.Module:
    """Another build with the same seed. Raises UserError unless it has the same parameters and buffers."""
    second = _built(bound, device)
    one, other = (dict([*each.named_parameters(), *each.named_buffers()]) for each in (first, second))
    differing = [name for name in one if name not in other or not batches.same(one[name], other[name])]
    differing += [name for name in other if name not in one]
    if differing:
        raise mistake(
            type(bound.own),
            "model",
            f"model() makes another '{differing[0]}' when it is called again with the same seed; allowed: initial "
            "values from the random numbers of torch, numpy and Python's `random`, which are seeded",
        )
    return second


def computed(task: Computable, draft: Draft) -> Any:
    """The outputs of a pass in training mode. It is watched, and computed twice, to see which generators it depends on.

    Raises UserError for what the model raises.
    """
    unused = copied(task.again)
    watch, outputs, moved = _passed(task, task.model, draft)
    _, again, _ = _passed(task, task.again, draft)  # watched as well: modes change in which order is drawn
    watched(watch, batches.count(task.batch), draft, flops="forward_flops" not in draft.card)
    if changed := _changed(task, unused):
        draft.card["dependent"] = (
            f"the forward pass changes parameters ({several(changed)}), as max_norm of an Embedding, initial values "
            f"from data or an average of weights do ({place(draft.kind, 'model')}): a divided batch has several "
            "passes, in several processes, and each changes them"
        )
    same = all(map(batches.same, batches.leaves(outputs), batches.leaves(again)))
    draft.card["outside"] = moved if moved or same else ("a generator of its own",)
    return outputs


def _passed(task: Computable, model: nn.Module, draft: Draft) -> tuple[CardObserver, Any, tuple[str, ...]]:
    """What is seen of a pass in training mode, its outputs, and the generators that it draws from beside torch's."""
    watch, of = CardObserver(in_mode(model, training=True)), f"a batch of {batches.count(task.batch)} samples"
    with drawn_from(DRAWING_SEED), calling(draft.kind, "model", of):
        if is_gpu(draft.device):
            torch.cuda.manual_seed_all(DRAWING_SEED)
        before = generators()
        with watch.watching():
            outputs = task.bound.outputs(model, task.batch)
        after = generators()
    moved = (name for key, name in ELSEWHERE.items() if not batches.same(before[key], after[key]))
    return watch, outputs, tuple(moved)


def _changed(task: Computable, model: nn.Module) -> list[str]:
    """The parameters that a forward pass changes, in whichever way, or soon may. `model` has made none, the task's one.

    Its parameters are moved: an average of others begins with their values.
    """
    kinds = (nn.Embedding, nn.EmbeddingBag)
    names = {f"{name}.weight" for name, each in model.named_modules() if isinstance(each, kinds) and each.max_norm}
    left = dict(task.model.named_parameters())
    names |= {
        name for name, other in model.named_parameters() if name not in left or not batches.same(left[name], other)
    }
    with drawn_from(DRAWING_SEED), torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(MOVED * torch.rand_like(parameter))
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        with torch.enable_grad(), suppress(Exception):  # it may refuse such parameters
            task.bound.outputs(in_mode(model, training=True), task.batch)
    now = dict(model.named_parameters())
    return [name for name in before if name in names or name not in now or not batches.same(before[name], now[name])]
