"""The contract of a strategy: it sets model and optimizer, and overrides only what it does differently."""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.tensor import DTensor

from relay.base.errors import UserError
from relay.base.grouped import grouped
from relay.process.devices import is_gpu, use_own_stream
from relay.process.ranks import Ranks
from relay.spec.requirements import Requirements
from relay.strategies._checkpoints import Checkpoints, Replica
from relay.strategies._clipping import clip, local
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import FIRST_SCALE, BoundTask
from relay.task.calls import on_device
from relay.task.learning_rate import set_learning_rate

__all__ = ["Batch", "BoundTask", "Ranks", "Replica", "Requirements", "Strategy"]


class Strategy(Checkpoints):
    """How one task's training is parallelised over the run's processes.

    A subclass states `requirements` as a literal (the planner reads it from the file's text) and sets `model` (with
    the reference's parameter names) and `optimizer` in `build`. It also sets `replica` where ranks share one: each rank
    has one of its own otherwise. `module` is what a forward pass calls: the model, unless `build` sets a wrapper in its
    place (`self.module = Wrapper(self.model)`).

    `measured` is what `build` has to find out once for a whole run, such as where a pipeline is cut: it comes back to
    `build` in every later job. `scaler` scales the loss of fp16, and is None otherwise.
    """

    requirements: ClassVar[Requirements]
    # Steps of a process after which one can be captured as a CUDA graph, because nothing is built any more; 0: never.
    capture_after: ClassVar[int] = 0
    # Whether it is the training of one process as `Strategy` has it: what a gate compares all others with.
    plain: ClassVar[bool] = False
    module: nn.Module | None = None
    around_loss: type[AbstractContextManager[Any]] = nullcontext  # for a loss that reads parameters by itself
    accumulation = 1  # parts in which a slice is computed, one after the other
    rates: Sequence[Any] = ()  # the learning rates of the last step, by groups

    def __init_subclass__(cls) -> None:
        # Whoever changes a strategy says himself that these hold.
        cls.capture_after, cls.plain = vars(cls).get("capture_after", 0), vars(cls).get("plain", False)

    def __init__(
        self,
        task: BoundTask,
        ranks: Ranks,
        global_batch_size: int,
        options: Mapping[str, Any],
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        self.task, self.ranks, self.global_batch_size = task, ranks, global_batch_size
        self.measured = dict(measured or {})
        self.replica = Replica(ranks.rank, ranks.world_size)
        self.scaler = None
        if task.precision == "fp16":  # so that small gradients do not vanish; an overflow on any rank is one on all
            from relay.strategies._scaler import LossScaler

            self.scaler = LossScaler(ranks.device.type, init_scale=FIRST_SCALE)
        if self.capture_after and task.captured and is_gpu(ranks.device):
            use_own_stream(ranks.device)
        self.build(**{**self.requirements.options, **options})

    @classmethod
    @contextmanager
    def service(cls, run_id: str, device: str) -> Iterator[None]:
        """What a node needs as long as the run's processes are there; before they touch a device or join a group.

        `device` is the run's kind of device.
        """
        yield

    def build(self, **options: Any) -> None:
        """Set `model` and `optimizer`; the only mandatory method."""
        raise NotImplementedError(f"{type(self).__name__} has no build()")  # abstract

    def build_whole(self) -> None:
        """What every data-parallel strategy starts from: the whole model on this rank's device, and its optimiser."""
        self.model = on_device(self.task.model(), self.ranks.device)
        self.make_optimizer()

    def make_optimizer(self) -> None:
        """The task's optimiser over the model's parameters; sharded ones in a group of their own.

        The optimizers' fused loops refuse whole tensors and shards, or shards over different ranks, in one list.
        """
        self.optimizer = self.task.optimizer(self.model.parameters())
        regroup(self.optimizer, lambda each: each.device_mesh if isinstance(each, DTensor) else None)

    def forward(self, batch: Batch) -> Any:
        """The model's outputs for this replica's slice of the batch."""
        return self.task.outputs(self.module or self.model, batch)

    def train_step(self, batch: Batch) -> torch.Tensor:
        """One optimiser step; the mean loss over the replica's slice, a scalar on the device, not synchronised."""
        self.optimizer.zero_grad()  # at the start, so that gradients can still be measured between steps
        loss = self.in_parts(batch, self.accumulation)
        self.update()
        return loss

    def loss(self, outputs: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch, of which these are the outputs."""
        with self.around_loss():
            return self.task.loss(outputs, batch)

    def in_parts(self, batch: Batch, parts: int = 1) -> torch.Tensor:
        """The mean loss over the slice, whose parts are computed one after the other; gradients add up to those of all.

        Each part but the last is computed `unexchanged`.
        """
        losses, chunks = [], batches.chunks(batch, parts) if parts > 1 else [batch]
        for number, part in enumerate(chunks, 1):
            with self.unexchanged() if number < len(chunks) else nullcontext():
                loss = self.loss(self.forward(part), part)
                if len(chunks) > 1:
                    loss = loss * (batches.count(part) / batches.count(batch))
                self.backward(loss)
            losses.append(loss.detach())
        return torch.stack(losses).sum() if len(chunks) > 1 else losses[0]

    def unexchanged(self) -> AbstractContextManager[None]:
        """A context in which backward passes exchange nothing: the slice's last part does."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of the loss, which is scaled for fp16."""
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def update(self) -> None:
        """The optimiser's step, of gradients that are clipped where the task says so.

        In fp16 they are without the scale, and there is no step where one has overflowed on any rank.
        """
        if (most := self.task.own.clip_grad_norm) is not None:
            if self.scaler:
                self.scaler.unscale_(self.optimizer)
            updated = (each for group in self.optimizer.param_groups for each in group["params"])
            clip(updated, most, self.ranks.device, self.over_stages)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def over_stages(self, sum_of_mine: torch.Tensor) -> torch.Tensor:
        """A sum over this process's parameters, added up over the processes that hold other ones. Collective."""
        return sum_of_mine

    def set_learning_rate(self, learning_rate: float) -> None:
        """The rate of the next step. Raises UserError where the task has changed that of the last one by itself."""
        groups = self.optimizer.param_groups
        pairs = [(rate, group["lr"]) for rate, group in zip(self.rates, groups, strict=False)]
        floats = [pair for pair in pairs if all(type(each) is float for each in pair)]  # a captured step has tensors
        if changed := [f"{one:g} to {other:g}" for one, other in floats if one != other]:
            raise UserError(
                f"task {self.task.spec.name}: a step changes the learning rate from {changed[0]}; allowed: the class's "
                "schedule, or its method scheduler(self, optimizer, steps)"
            )
        set_learning_rate(self.optimizer, learning_rate)
        self.rates = [group["lr"] for group in groups]

    def train_steps(self, batches: Iterator[Batch]) -> Generator[torch.Tensor, None, None]:
        """Train a step with each batch, and hand over its loss (as `train_step` returns it) before the next one.

        The caller owns the loop: it evaluates, saves and sets the learning rate between two steps, and closes the
        generator to end the training early. A framework that owns its loop and calls back can be hosted here too: it
        runs in a thread of its own, which takes turns with the caller (tests/strategies/right_own_loop.py shows it).
        """
        for batch in batches:
            yield self.train_step(batch)

    def uncapturable(self) -> str:
        """Why no step can be captured, in words that go on after "because"; '' where none is known."""
        return ""

    def forget_step(self) -> None:
        """Be ready for the next step, after one that was begun and came to no end."""

    @torch.no_grad()
    def predict(self, batch: Batch) -> Any:
        """Outputs of this replica's slice in evaluation mode; read only where `replica.reports`. Collective."""
        self.model.eval()
        outputs = self.forward(batch)
        self.model.train()
        return outputs

    def whole_model(self) -> dict[str, torch.Tensor]:
        """The model's full state under the reference's names, on the CPU; only rank 0's is complete. Collective."""
        # Gathers what is sharded; a stage of a pipeline still has its own layers only.
        state: dict[str, Any] = get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True))
        mine: dict[str, torch.Tensor] = {name: tensor.detach().cpu() for name, tensor in state.items()}
        holders = self.ranks.gather(list(mine))
        first = {name: rank for rank in reversed(range(len(holders))) for name in holders[rank]}
        for part in self.ranks.collect({name: mine[name] for name in mine if first[name] == self.ranks.rank}):
            mine |= part
        return mine

    def counted(self) -> dict[str, int]:
        """What this rank has counted since it was built, for the run's records; the ranks' counts are added up."""
        return {}

    def busy_waits(self) -> Sequence[tuple[Any, str]]:
        """Functions, each as its owner and its name, in which the training thread waits for others without sleeping."""
        return ()

    def footprint(self) -> dict[str, int]:
        """Bytes of parameters, gradients and optimizer state that this rank holds between steps."""
        return footprint(self.model, self.optimizer)


def footprint(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of parameters, gradients and optimizer state in this process: of a sharded tensor only the shard counts."""
    parameters: list[torch.Tensor] = list(model.parameters())
    tensors = {
        "parameters": parameters,
        "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
        "optimizer": [t for held in optimizer.state.values() for t in held.values() if torch.is_tensor(t) and t.dim()],
    }
    return {kind: sum(local(tensor).nbytes for tensor in held) for kind, held in tensors.items()}


def regroup(optimizer: torch.optim.Optimizer, kind: Callable[[nn.Parameter], Hashable]) -> None:
    """Divide each group of an optimiser's parameters into those of one kind, in the order in which kinds appear."""
    divided = []
    for group in optimizer.param_groups:
        divided += [{**group, "params": held} for held in grouped(group["params"], kind).values()]
    optimizer.param_groups[:] = divided
