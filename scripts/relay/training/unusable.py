"""When what a run recorded is no result of it: a loss that is not finite, steps or evaluations that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.run_folder.attempts import not_finite
from relay.run_folder.replaced import how_anew
from relay.spec.run import Training

# Batches differ, so that the losses of so many steps differ too, even where nothing is learnt.
MOST_EQUAL_LOSSES = 10


def no_result(
    run: Training, losses: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], began: int = 0
) -> str:
    """Why the records of a finished run are no result, and what to do; '' where they are one.

    `losses` are (step, training loss) of the steps that count, in order. `evaluations` have `step`, `test_loss` and
    `test_accuracy`. `began` is the step from which the run went on: that of a checkpoint that it took over, or 0.
    """
    return not_finite(losses, evaluations) or next(_faults(run, losses, evaluations, began), "")


def _faults(
    run: Training, losses: Sequence[tuple[int, float]], evaluations: Sequence[Mapping[str, Any]], began: int
) -> Iterator[str]:
    total, anew = run.length.total_steps, f"`{how_anew(run.id)}` lets it train anew"
    recorded = {step for step, _ in losses}
    if missing := [step for step in range(began + 1, total + 1) if step not in recorded]:
        count = f"{len(missing)} of {total - began} steps have no training loss in its records"
        yield f"{count}, the first is {missing[0]}; {anew}"
    if len(losses) >= MOST_EQUAL_LOSSES and len({loss for _, loss in losses}) == 1:
        yield (
            f"the training loss is {losses[0][1]:.6g} at every step: it cannot be that of its batches; "
            "`train_step` returns the mean loss of the batch that it trained"
        )
    at_the_end = [evaluation for evaluation in evaluations if evaluation["step"] == total]
    if not at_the_end:
        yield f"the evaluation after the last step, {total}, is missing in its records; {anew}"
    for evaluation in at_the_end:
        accuracy = evaluation["test_accuracy"]
        if accuracy is None and "accuracy" in run.task.metrics:
            yield f"the test accuracy of step {total} is missing in its records; {anew}"
        if accuracy is not None and not 0 <= accuracy <= 1:  # also where it is no number
            yield f"the test accuracy of step {total} is {accuracy:.4g}; allowed: from 0 to 1. Look at `predict`"
