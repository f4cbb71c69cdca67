"""Whether this machine's float32 arithmetic is float32: the reference's, against its own in float64.

A variable of the environment can lower every process alike. Then no comparison of two of them shows it.
"""

from __future__ import annotations

import os
from dataclasses import replace

import torch

from relay.base.errors import UserError
from relay.equivalence.figures import distance
from relay.equivalence.plain import Plain
from relay.equivalence.trial_task import TrialData, TrialTask
from relay.equivalence.trials import SMOOTH
from relay.spec import arithmetic
from relay.spec.run import Training
from relay.spec.setting import TF32

# After so many steps of the smooth twin, relative to the update: rounding in float32 gives 3e-6 or less (LeNet, the
# autoencoder, ResNet-18, the small GPTs), products in bfloat16 give 1.5e-3 or more.
STEPS, LIMIT = 3, 3e-4


def check(run: Training, data: TrialData) -> None:
    """Raises UserError where float32 training is further from float64 than rounding explains.

    There is nothing to check for runs in float64, which use no float32, and in tf32, which lower it themselves.
    """
    if run.computation.precision == "fp64" or run.computation.precision in TF32:
        return
    updates = {precision: _update(run, data, precision) for precision in ("fp64", "fp32")}
    length = float(torch.stack([tensor.norm() for tensor in updates["fp64"]]).norm())
    figure = distance(list(zip(updates["fp32"], updates["fp64"], strict=True))) / length if length else 0.0
    if figure <= LIMIT:
        return
    variables = arithmetic.variables_set(os.environ)
    cause = f"the environment has {variables}: unset what lowers it" if variables else "its cause is unknown"
    raise UserError(
        f"the reference: float32 training is {figure:.1e} of the update away from float64 after {STEPS} steps; allowed "
        f"is {LIMIT:.0e}. This machine's float32 arithmetic is not float32; {cause}"
    )


def _update(run: Training, data: TrialData, precision: str) -> list[torch.Tensor]:
    """The last step's update of each parameter, in float64: SGD's momentum, to which all steps' gradients add.

    Not how far the parameters have moved: where that is little beside what they are, storing them rounds it away.
    """
    task = TrialTask.in_trial(run, replace(SMOOTH, precision=precision), scale=1.0)
    plain = Plain.of(task, data.device)
    for step, batch in enumerate(data.batches(task, STEPS, 0, 1)):
        plain.step([[batch]], task.learning_rate(step))
    held = [plain.optimizer.state[p] for p in plain.model.parameters()]
    return [state["momentum_buffer"].double() for state in held if state]  # a parameter without a gradient has none
