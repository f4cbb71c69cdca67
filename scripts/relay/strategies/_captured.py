"""A whole step as one CUDA graph, where that computes the same: a GPU that is quick waits for Python otherwise.

The graph goes from the numbers of the samples, or from what a loader has read of them, to the optimiser's update. Each
replay reads them, and the learning rate, from where they were when the step was captured. What Python does in a step is
done once, while it is captured: so a step is watched first, and the gate and the spot checks look at what is replayed.
NCCL's watchdog sees no collective of a replay: that a step has ended is what the ranks wait for where they agree.
"""

import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from relay.chain.generators import generators
from relay.process.devices import is_gpu
from relay.process.generators import alike
from relay.strategies.base import Strategy
from relay.task import batches
from relay.task.batches import Batch
from relay.task.bound import BoundTask

# What torch says where the CPU waits for a GPU, in its mode that tells of it.
WAITS = "synchronizing CUDA operation"
DRAWS = "it draws random numbers on the CPU"
IN_FEW_BITS = {
    "fp64": "the learning rate of a captured step is a float32",
    "fp16": "the scale of the loss is read in every step",
}
# Their fused update takes the learning rate from the GPU. So do others of torch's that can be `capturable`.
FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)


class Captured:
    """Trains a strategy's steps; the first ones as ever, then one graph again and again.

    `why` says why no step is captured; '' where one is, or will be. `replayed` counts the steps that were replayed.
    Batches of another shape than the captured one are trained as ever.
    """

    def __init__(self, strategy: Strategy, ready: Callable[[Any], Batch]) -> None:
        """`ready` makes a batch on the device of what `train_steps` is given."""
        self.strategy, self.ready, self.device = strategy, ready, strategy.ranks.device
        self.why, self.replayed = "", 0
        if reason := not_capturable(strategy):
            self._give_up(reason)
        self._before = strategy.capture_after  # steps that are still trained as ever
        self._graph: torch.cuda.CUDAGraph | None = None

    def train_steps(self, raws: Iterator[Any]) -> Generator[torch.Tensor, None, None]:
        """As `Strategy.train_steps`; `raws` are what `Feeder.raws` gives."""
        if not self.why:
            prepare(self.strategy.optimizer)
            self._first = self.strategy.optimizer.register_step_pre_hook(self._look_at_gradients)
        try:
            for raw in raws:
                yield self._step(raw)
        finally:
            if not self.why and not self.replayed:
                self.why = "its steps were too few, or its batches have other shapes each time"
            self._release()

    @property
    def record(self) -> dict[str, Any]:
        """For the run's records: how many steps were replayed; and why not more, where none was."""
        return {"replayed": self.replayed, "why_not": self.why}

    def _step(self, raw: Any) -> torch.Tensor:
        if not self.why and not self._before and self._graph is None:
            self._capture(raw)
        if self._graph is not None and _form(raw) == self._form:
            return self._replay(raw)
        self._before = max(0, self._before - 1)
        if self.why or self._before:
            return self.strategy.train_step(self.ready(raw))
        return self._watched(batches.moved(raw, self.device))

    def _watched(self, raw: Any) -> torch.Tensor:
        """Train a step as ever, and see whether it does what a graph could not repeat."""
        mode, before, drawn = torch.cuda.get_sync_debug_mode(), _python_state(self.strategy), _of_cpu()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                loss = self.strategy.train_step(self.ready(raw))
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        waits = [each for each in caught if WAITS in str(each.message)]
        for each in caught:
            if each not in waits:
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        after = _python_state(self.strategy)
        changed = [name for name, value in after.items() if name not in before or not _same(value, before[name])]
        if waits:
            self._give_up(f"it waits for the GPU ({Path(waits[0].filename).name}, line {waits[0].lineno})")
        elif not alike(drawn, _of_cpu()):
            self._give_up(DRAWS)
        elif changed:
            self._give_up(f"Python changes {changed[0]} in every step")
        elif not all(isinstance(part, torch.Tensor) for _, part in batches.placed(raw)):
            self._give_up("its batches hold more than tensors")
        return loss

    def _look_at_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Before the first update. Fused ones refuse sparse gradients: then it is as before `prepare`."""
        self._first.remove()
        gradients = (parameter.grad for group in optimizer.param_groups for parameter in group["params"])
        if any(gradient is not None and gradient.is_sparse for gradient in gradients):
            for group in optimizer.param_groups:
                group["fused"] = False
            self._give_up("its gradients are sparse")

    def _capture(self, raw: Any) -> None:
        """Capture a step, which computes nothing yet. Where that fails, steps are trained as ever."""
        self._raw = batches.each(lambda tensor: tensor.to(self.device, copy=True), raw)
        self._form = _form(raw)
        generator = torch.cuda.default_generators[self.device.index]
        drawn, drawn_on_cpu = generator.clone_state(), _of_cpu()
        # What a step and an evaluation need beside what is held: they shared it, and the graph keeps its own.
        needed = torch.cuda.max_memory_allocated(self.device) - torch.cuda.memory_allocated(self.device)
        noted, BoundTask.parts = BoundTask.parts, []
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, such as NCCL's or one that saves, may ask the GPU meanwhile.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                self._loss = self.strategy.train_step(self.ready(self._raw))
            if not alike(drawn_on_cpu, _of_cpu()):
                self._give_up(DRAWS)
            elif torch.cuda.mem_get_info(self.device)[0] < needed:
                self._give_up("an evaluation would have no room beside the graph")
            else:
                self._graph = graph
        except Exception as error:  # whatever cannot be captured: nothing was computed
            generator.graphsafe_set_state(drawn)
            self.strategy.forget_step()
            self._give_up(f"of an error: {_first(error)}")
        finally:
            self._noted, BoundTask.parts = BoundTask.parts, noted

    def _replay(self, raw: Any) -> torch.Tensor:
        assert self._graph is not None
        for mine, new in zip(batches.leaves(self._raw), batches.leaves(raw), strict=True):
            mine.copy_(new, non_blocking=True)
        self._graph.replay()
        if BoundTask.parts is not None:  # the step is watched for a spot check
            BoundTask.parts += self._noted or []
        self.replayed += 1
        return self._loss.clone()  # the next replay writes there

    def _give_up(self, why: str) -> None:
        self.why = why
        for group in self.strategy.optimizer.param_groups:
            group["lr"] = float(group["lr"])
        if self.strategy.ranks.rank == 0 and self.strategy.task.captured and self.strategy.capture_after:
            print(f"note: steps are not captured as a CUDA graph, because {why}", flush=True)

    def _release(self) -> None:
        """Let go of the graph: NCCL does not end its communicators while one may still use them."""
        if self._graph is not None:
            self._graph.reset()
            self._graph = None


def not_capturable(strategy: Strategy) -> str:
    """Why a strategy's steps cannot be captured, in words that go on after "because"; '' where they may be."""
    if not strategy.task.captured:
        return "cuda_graph is false"
    if not is_gpu(strategy.ranks.device) or not strategy.capture_after:
        return "this strategy does not capture them"
    if type(strategy).train_steps is not Strategy.train_steps:
        return "this strategy has a loop of its own"
    if reason := IN_FEW_BITS.get(strategy.task.precision):
        return reason
    if strategy.task.recompute:
        return "activations are recomputed with the random numbers of before, which are read on the CPU"
    optimizer = strategy.optimizer
    kind, name = type(optimizer), type(optimizer).__name__
    counts_on_gpu = kind.__module__.startswith("torch.optim") and (kind in FUSED or "capturable" in optimizer.defaults)
    if not counts_on_gpu:
        return f"of {name} it is not known that it keeps all it counts on the GPU"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return f"{name} has hooks, which run on the CPU"
    for group in optimizer.param_groups:
        if group.get("differentiable") or (
            kind is torch.optim.SGD and not group["fused"] and (group["fused"], group["foreach"]) != (None, None)
        ):
            return f"{name} is asked to update in a way that takes its learning rate from the CPU"
    return strategy.uncapturable()


def prepare(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimiser keep on the GPU what its update needs: the learning rate, and the number of its steps.

    Fused updates round otherwise in the last place.
    """
    for group in optimizer.param_groups:
        device = group["params"][0].device
        if type(optimizer) in FUSED and group["fused"] is None and group["foreach"] is None:
            group["fused"], group["foreach"] = True, False
        elif group.get("foreach", ...) is None and not group.get("fused"):
            group["foreach"] = True
        if "capturable" in group:
            group["capturable"] = True
        group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32).to(device)
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].to(optimizer.param_groups[0]["params"][0].device)


def _of_cpu() -> dict[str, Any]:
    """The state of the CPU's random generators."""
    return {name: state for name, state in generators().items() if name != "cuda"}


def _form(raw: Any) -> tuple[Any, ...]:
    """A batch's structure, and the shapes and types of its tensors."""
    parts, structure = tree_flatten(raw)
    return structure, *((part.shape, part.dtype) for part in parts if isinstance(part, torch.Tensor))


def _python_state(strategy: Strategy) -> dict[str, Any]:
    """What Python holds of the modules and of the task, by name: numbers, words and tensors."""
    state = {}
    for name, each in [("the task", strategy.task.own), *strategy.model.named_modules()]:
        held = vars(each) | getattr(each, "_parameters", {}) | getattr(each, "_buffers", {})
        for key, value in held.items():
            if isinstance(value, bool | int | float | str | torch.Tensor):
                state[f"{name or 'the model'}.{key}"] = value
    return state


def _same(one: Any, other: Any) -> bool:
    """Whether it is the same tensor, whatever is in it; or the same number or word."""
    return one is other or (not isinstance(one, torch.Tensor) and bool(one == other))


def _first(error: BaseException) -> str:
    """The error that the others follow from, in a line: after it, the end of the capture fails, too."""
    while error.__context__ is not None:
        error = error.__context__
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
