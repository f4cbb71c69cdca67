"""In which precision a task computes: that of its run, or a lower one to which its own code turns."""

from contextlib import suppress
from typing import Any

import torch

from relay.process.generators import drawn_from
from relay.task import batches
from relay.task.bound import AUTOCAST, BoundTask
from relay.task.calls import in_mode, on_device, tensors_in
from relay.task.modes import Operations, flops

SAMPLES = 8  # of the batch that is looked at


def computed_in(task: BoundTask, device: torch.device, *, evaluated: bool = False) -> str:
    """The precision whose rounding a training has: the task's, or the coarsest that its model or loss asks for.

    With `evaluated`, that of an evaluation of what was trained: the coarsest of both. A forward pass that enters
    autocast by itself rounds as a run in bf16 does, whatever the run's precision is. Masks and samples of few bits
    round nothing that differs between trainings.
    """
    task, types = task.apart(), set[torch.dtype]()
    task.compiled = False  # compiled code shows no operations

    def note(func: Any, _: Any, args: Any, kwargs: Any, result: Any) -> None:
        learnt = any(each.requires_grad for each in tensors_in((args, kwargs)))
        if learnt or flops(func, args, kwargs, result):  # such as those of layers that are not trained
            types.update(leaf.dtype for leaf in tensors_in(result))

    with suppress(Exception), drawn_from(0):  # whatever a model or a loss raises for few samples, or in evaluation
        model, batch = on_device(task.model(), device), batches.moved(task.example(SAMPLES), device)
        with task.computing(), Operations(note):
            for training in (True, False) if evaluated else (True,):
                task.loss(task.outputs(in_mode(model, training), batch), batch)
    return next((name for name, low in AUTOCAST.items() if low in types), task.precision)
