"""The reference: the gate's trials in one process and a plain PyTorch loop, which knows nothing of strategies.

Started by the launcher: `python -m relay.launch.worker equivalence.reference WORK --help`.
"""

from __future__ import annotations

from typing import Any

import torch

from relay.base import options
from relay.equivalence.made_with import made_with
from relay.equivalence.trials import Trial, TrialData, TrialTask, trials
from relay.process import machine
from relay.spec import arithmetic
from relay.spec.run import Reference, Training
from relay.task.task import FIRST_SCALE


def train(run: Training, trial: Trial, data: TrialData, parts: int = 1) -> dict[str, Any]:
    """Train one trial, unscaled, and return its losses (steps,), parameters, outputs and bytes held.

    The gradients of a batch are summed from so many parts of it: the same training, but for rounding.

    `outputs` are those of the trained model, in evaluation mode, for the first global batch; `update` is the L2 norm
    of what training has changed in the parameters.
    """
    task = TrialTask.in_trial(run, trial, scale=1.0)
    model = task.model().to(data.device)
    before = [p.detach().double().clone() for p in model.parameters()]
    optimizer = task.optimizer(model.parameters())
    scaler = torch.amp.GradScaler(data.device.type, init_scale=FIRST_SCALE, enabled=trial.precision == "fp16")
    losses = []
    slices = (data.batches(task, trial.steps, part, parts) for part in range(parts))
    for step, batch in enumerate(zip(*slices, strict=True)):
        for group in optimizer.param_groups:
            group["lr"] = task.learning_rate(step)
        optimizer.zero_grad()
        losses.append(torch.zeros((), dtype=torch.float64))
        for inputs, targets in batch:
            loss = task.loss(model(inputs), targets) * (len(targets) / run.batch.global_batch_size)
            scaler.scale(loss).backward()
            losses[-1] += loss.detach().double().cpu()
        scaler.step(optimizer)
        scaler.update()
    parameters = list(model.parameters())
    state = [t for held in optimizer.state.values() for t in held.values() if torch.is_tensor(t) and t.dim()]
    model.eval()
    with torch.no_grad():
        outputs = model(next(data.batches(task, 1, 0, 1))[0]).cpu()
    return {
        "losses": torch.stack(losses),
        "parameters": {name: tensor.cpu() for name, tensor in model.state_dict().items()},
        "outputs": outputs,
        "update": float(torch.stack([(p.detach() - b).norm() for p, b in zip(parameters, before, strict=True)]).norm()),
        "footprint": {
            "parameters": sum(p.nbytes for p in parameters),
            "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
            "optimizer": sum(t.nbytes for t in state),
        },
    }


def rounding(run: Training, trial: Trial, data: TrialData, losses: torch.Tensor) -> float:
    """How far rounding alone moves these losses of the trial: the largest difference when batches come in halves."""
    if run.batch.global_batch_size == 1:
        return 0.0
    return float((train(run, trial, data, parts=2)["losses"] - losses).abs().max())


def main(arguments: list[str]) -> None:
    """Parse the command line, train the reference and write it."""
    parser = options.parser(__doc__, "spec", "output", "dataset", prog="equivalence.reference")
    given = parser.parse_args(arguments)

    run = Reference.read(given.spec)
    arithmetic.check(f"{run.kind} {run.id}", run.place)
    machine.set_threads(run.shape.threads, run.shape.interop_threads)
    machine.set_precision(run.computation.precision)
    torch.use_deterministic_algorithms(True, warn_only=True)
    data = TrialData(run, given.dataset, torch.device("cuda" if run.shape.device == "cuda" else "cpu"))
    trained: dict[str, Any] = {"made_with": made_with(given.dataset, data.device)}
    for trial in trials(run, lossy=True):
        trained[trial.name] = train(run, trial, data)
        if trial.allows_rounding:
            trained[trial.name]["rounding"] = rounding(run, trial, data, trained[trial.name]["losses"])
    partial = given.output.with_suffix(".partial")
    torch.save(trained, partial)
    partial.rename(given.output)
    print(f"reference {run.id}: {run.length.total_steps} steps, last loss {trained['algorithm']['losses'][-1]:.4f}")
