"""Where DeepSpeed has put this rank's part of each parameter, and of its optimizer's state.

DeepSpeed lays the parameters in a row, and updates a flat piece of it on each rank: in the stages 1 and 2 the ranks
cut the row, in stage 3 they cut each parameter.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from relay.base.grouped import gathered
from relay.process.ranks import Ranks
from relay.strategies._deepspeed_library import go_on_from
from relay.task.calls import tensors_in
from relay.task.modes import FunctionMode

Tensors = dict[str, torch.Tensor]
# A checkpoint is read in portions of about this size, so that no rank ever has the whole of it in memory.
PORTION_BYTES = 2**28
STATE = "optimizer.state."  # in a checkpoint, before a parameter's name and what the optimizer has of it


class Part(NamedTuple):
    """This rank's part of one parameter: `length` numbers from `start` on, which lie at `offset` of a flat piece."""

    piece: int
    offset: int
    start: int
    length: int

    def of_whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """The part of a whole parameter, or of what the optimizer has of it; flat."""
        return tensor.reshape(-1)[self.start : self.start + self.length]

    def of_piece(self, flat: torch.Tensor) -> torch.Tensor:
        """The part in a flat piece."""
        return flat.narrow(0, self.offset, self.length)


class WholeParameters(FunctionMode):
    """For a loss: raises RuntimeError where it reads a parameter that stage 3 has given up, as an empty tensor.

    No UserError: the task is right, and the gate strikes out what cannot train it.
    """

    def called(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a function gives."""
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        read = tensors_in((args, dict(kwargs))) if tensors_in(result) and name != "__get__" else []  # as DeepSpeed does
        lost = [status for each in read if (status := getattr(each, "ds_status", None)) and status.name != "AVAILABLE"]
        if lost and name == "detach":
            result.ds_status = lost[0]  # no value is read yet
        elif lost:
            raise RuntimeError(
                "the loss reads a parameter, of which stage 3 of ZeRO holds nothing outside of its module's call; take "
                "a strategy that holds it, such as ddp, fsdp or zero2"
            )
        return result


class Parts:
    """The parts of all of a model's parameters on this rank, by the parameters' names.

    `updated` are the ids of those that the optimizer updates. DeepSpeed leaves the others, `fixed`, out of its rows:
    before stage 3 every rank has them whole. `tied` are further names of parameters, and the names by which they are
    among these.
    """

    def __init__(self, model: nn.Module, zero: Any, updated: Collection[int], stage: int, ranks: Ranks) -> None:
        self.zero, self.stage, self.ranks = zero, stage, ranks
        named = dict(model.named_parameters())
        self.parameters = {name: parameter for name, parameter in named.items() if id(parameter) in updated}
        self.fixed = {name: parameter for name, parameter in named.items() if id(parameter) not in updated}
        first = {id(parameter): name for name, parameter in named.items()}
        every = model.named_parameters(remove_duplicate=False)
        self.tied = {name: first[id(parameter)] for name, parameter in every if name not in named}
        find = self._divided if stage == 3 else self._cut
        self.own = {name: find(parameter) for name, parameter in self.parameters.items()}
        self.shapes = {name: getattr(each, "ds_shape", each.shape) for name, each in self.parameters.items()}
        self.everywhere: list[dict[str, Part]] = ranks.gather(self.own)

    def _cut(self, parameter: nn.Parameter) -> Part:
        """In stages 1 and 2: a rank's piece of the row covers whole parameters, and parts of two."""
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return Part(0, 0, 0, 0)
        inside, flat = mapping.lp_fragment_address, mapping.hp_fragment_address
        return Part(mapping.param_group_index, flat.start, inside.start, inside.numel)

    def _divided(self, parameter: nn.Parameter) -> Part:
        """In stage 3: each rank has an equal part; the last one may be filled up."""
        piece, offset, equal = self.zero.grad_position[self.zero.get_param_id(parameter)]
        start = self.ranks.rank * equal
        return Part(piece, offset, start, max(0, min(equal, parameter.ds_numel - start)))  # type: ignore[attr-defined]

    @property
    def pieces(self) -> list[nn.Parameter]:
        """The flat pieces that this rank's optimizer updates."""
        if self.stage == 3:
            return list(self.zero.fp32_partitioned_groups_flat)
        return list(self.zero.single_partition_of_fp32_groups)

    def by_piece(self) -> Iterator[tuple[int, list[str]]]:
        """The parameters' names by piece, in the same order on all ranks."""
        piece = {name: max(parts[name].piece for parts in self.everywhere) for name in self.own}
        for number, names in groupby(sorted(self.own, key=piece.__getitem__), key=piece.__getitem__):
            yield number, list(names)

    @contextmanager
    def _in_memory(self, piece: int, *, changed: bool = False) -> Iterator[nn.Parameter]:
        """A flat piece, which is read from the disk where it lies there, and written back where it has `changed`."""
        swapped = self.stage == 3 and self.zero._swappable_optimizer_subgroup(piece)
        if swapped:
            self.zero._optimizer_states_and_gradient_swap_in(piece)
        yield self.pieces[piece]
        if changed and self.stage == 3:  # what the layers are computed with
            self.zero._reassign_or_swap_out_partitioned_parameters(piece)
        if swapped and changed:
            self.zero._optimizer_states_and_gradient_swap_out(piece)
        elif swapped:
            self.zero._release_swap_buffers(piece)

    def _state(self, piece: nn.Parameter) -> dict[str, Any]:
        return dict(self.zero.optimizer.state.get(piece, {}))

    @contextmanager
    def _whole_fixed(self, *, changed: bool = False) -> Iterator[Mapping[str, nn.Parameter]]:
        """The parameters that are not updated, whole on every rank; what all ranks have `changed` alike is kept."""
        if self.stage < 3 or not self.fixed:
            yield self.fixed
            return
        import deepspeed

        with deepspeed.zero.GatheredParameters([*self.fixed.values()], modifier_rank=0 if changed else None):
            yield self.fixed

    def collect(self, *, parameters_to: int | None = None) -> tuple[Tensors, Tensors]:
        """Whole parameters, as the optimizer has them, and its whole state, in main memory. Collective.

        Every rank gets about as many numbers as it has parts of; or the rank `parameters_to` gets all parameters, and
        nobody the state.
        """
        with self._whole_fixed() as fixed:
            model = {name: parameter.detach().cpu().clone() for name, parameter in fixed.items()}
        if self.ranks.rank != (parameters_to or 0):
            model = {}
        optimizer: Tensors = {}
        if parameters_to is None:
            owners = _shared_out({name: shape.numel() for name, shape in self.shapes.items()}, self.ranks.world_size)
        else:
            owners = dict.fromkeys(self.own, parameters_to)
        for number, names in self.by_piece():
            with self._in_memory(number) as piece:
                state = self._state(piece) if parameters_to is None else {}
                for name in names:
                    self._collect(name, piece.detach(), owners[name], model, name)
                    for kind, value in state.items():
                        if _is_flat(value):
                            self._collect(name, value, owners[name], optimizer, f"state.{name}.{kind}")
                        elif owners[name] == self.ranks.rank and value is not None:
                            optimizer[f"state.{name}.{kind}"] = torch.tensor(float(value))
        # Those that are tied have each of their names, as in a model's state.
        return model | {name: model[other] for name, other in self.tied.items() if other in model}, optimizer

    def _collect(self, name: str, flat: torch.Tensor, to: int, whole: Tensors, place: str) -> None:
        """Send this rank's part of one tensor to the rank that gets the whole of it. Collective."""
        mine, control = self.own[name], self.ranks.control
        part = mine.of_piece(flat).cpu()
        if self.ranks.rank != to:
            if mine.length:
                dist.send(part, to, group=control)
            return
        row = torch.empty(self.shapes[name].numel(), dtype=flat.dtype)
        for rank, parts in enumerate(self.everywhere):
            if rank == to:
                mine.of_whole(row).copy_(part)
            elif parts[name].length:
                dist.recv(parts[name].of_whole(row), rank, group=control)
        whole[place] = row.view(self.shapes[name])

    def load(self, directory: Path, saved: Mapping[str, Any]) -> None:
        """Read the parameters and the optimizer's state from a checkpoint of any strategy, which has `saved`."""
        kinds = gathered(
            (key.removeprefix(STATE).rpartition(".")[0], (key, about))
            for key, about in saved.items()
            if key.startswith(STATE) and isinstance(about, TensorStorageMetadata)
        )
        states: list[dict[str, Any]] = []
        for number, names in self.by_piece():
            with self._in_memory(number, changed=True) as piece:
                state: dict[str, Any] = {}
                for portion in self._portions(names):
                    whole = {f"model.{name}": torch.empty(self.shapes[name], dtype=piece.dtype) for name in portion}
                    for key, about in (each for name in portion for each in kinds.get(name, ())):
                        whole[key] = torch.empty(about.size, dtype=about.properties.dtype)
                    dcp.load(whole, checkpoint_id=directory, process_group=self.ranks.saving)
                    self._keep(whole, portion, piece, state)
                self.zero.optimizer.state[piece] = state
                states.append(state)
        go_on_from(self.zero.optimizer, states)
        with self._whole_fixed(changed=True) as fixed:
            read = {name: torch.empty_like(parameter, device="cpu") for name, parameter in fixed.items()}
            dcp.load({"model": read}, checkpoint_id=directory, process_group=self.ranks.saving)
            for name, parameter in fixed.items():
                parameter.data.copy_(read[name])

    def _portions(self, names: Iterable[str]) -> Iterator[list[str]]:
        """The names, so many at a time that they and their state have about PORTION_BYTES."""
        ahead = list(names)
        while ahead:
            numbers, count = 0, 0
            while count < len(ahead) and numbers * 4 * 3 < PORTION_BYTES:
                numbers, count = numbers + self.shapes[ahead[count]].numel(), count + 1
            yield ahead[:count]
            ahead = ahead[count:]

    def _keep(self, whole: Tensors, names: list[str], piece: nn.Parameter, state: dict[str, Any]) -> None:
        """Of these whole parameters and their state, by their names in a checkpoint: this rank's parts."""
        for name in names:
            mine, values = self.own[name], whole[f"model.{name}"]
            mine.of_piece(piece.detach()).copy_(mine.of_whole(values))
            if self.stage < 3:
                self.parameters[name].data.copy_(values)
        for key, values in whole.items():
            name, _, kind = key.removeprefix(STATE).rpartition(".")
            if not key.startswith(STATE):
                continue
            if values.dim() == 0:
                state[kind] = values
                continue
            flat = state.setdefault(kind, torch.zeros_like(piece, requires_grad=False))
            self.own[name].of_piece(flat).copy_(self.own[name].of_whole(values))

    def parameter_bytes(self) -> int:
        """Bytes of parameters that this rank has in memory between steps."""
        held = 0
        for parameter in (*self.parameters.values(), *self.fixed.values()):
            held += parameter.nbytes
            if self.stage == 3:
                divided = parameter.ds_tensor  # type: ignore[attr-defined]
                held += divided.nbytes if divided.status.name == "AVAILABLE" else 0  # otherwise it is on a disk
        return held

    def gradient_bytes(self) -> int:
        """Bytes of gradients that this rank has in memory before the optimizer's step."""
        held = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        averaged = getattr(self.zero, "averaged_gradients", {}).values()
        held += [gradient for group in averaged if group for gradient in group]
        held += [piece.grad for piece in self.pieces if piece.grad is not None]
        swapper = getattr(self.zero, "optimizer_swapper", None)
        for info in swapper.swap_params_info.values() if swapper else ():
            held += info.unswapped_gradients.values()
        return sum({(each.data_ptr(), each.nbytes): each.nbytes for each in held}.values())

    def master_bytes(self) -> int:
        """Bytes of the flat pieces, but of those that share the parameters' memory."""
        memory = {
            parameter.ds_tensor.untyped_storage().data_ptr()  # type: ignore[attr-defined]
            for parameter in (*self.parameters.values(), *self.fixed.values())
            if self.stage == 3
        }
        return sum(piece.nbytes for piece in self.pieces if piece.untyped_storage().data_ptr() not in memory)

    def optimizer_bytes(self) -> int:
        """Bytes of the optimizer's state in memory."""
        state = [value for piece in self.pieces for value in self._state(piece).values()]
        return sum(value.nbytes for value in state if _is_flat(value))


def _is_flat(value: object) -> bool:
    return torch.is_tensor(value) and value.dim() > 0


def _shared_out(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """A rank for each name, so that all ranks have about the same in sum."""
    taken, owners = [0] * ranks, {}
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        owners[name] = taken.index(min(taken))
        taken[owners[name]] += sizes[name]
    return owners
