"""What verdicts say, as they are read from verdict.json: of a run's own batch, of all, and whether they refuse."""

from collections.abc import Mapping
from dataclasses import asdict
from itertools import compress
from typing import Any

from relay.spec.run import OwnBatch

# The usual cause where a trial fails and none of those before it does, as a beginning of its problem; and where the
# first step is right.
CAUSES: Mapping[str, str] = {
    "algorithm": "probably the mean over samples or processes, clipping, or the update differs: ",
    "scaled": "probably large gradients are clipped: ",
    "evaluation": "probably predictions are computed otherwise: ",
    "between steps": "probably a checkpoint, an evaluation or random numbers change the training: ",
    "own precision": "probably something is computed in fewer bits: ",
    "gradient": "probably something is computed in fewer bits: ",
    "smooth twin": "probably what is sent or multiplied has fewer bits: ",
    "own optimizer": "probably the optimiser's state has fewer bits: ",
    "lossy": "probably more is lost than the strategy declares: ",
}
LATER = "probably what is kept from step to step, such as the optimiser's state or the learning rate, differs: "
# What is said of the run's own batch in place of all.
OWN = ("unprovable", "samples_per_rank", "bytes_sent_per_step")
NOTHING = {"equivalent": False, "parts": [], "problems": [], "notes": []}


def refuses(verdict: Mapping[str, Any]) -> bool:
    """Whether it is against what it judges, which it has neither proven nor found unprovable."""
    return not (verdict.get("equivalent") or verdict.get("unprovable"))


def of_batch(verdict: Mapping[str, Any], own: OwnBatch) -> dict[str, Any]:
    """What a verdict, read from verdict.json, says of runs with this batch: its shared parts and those of the batch.

    A gate whose strategy failed before it came to this batch has shown nothing of it.
    """
    entries = [entry for entry in verdict.get("own_batches", []) if {**entry, **asdict(own)} == entry]
    entry: Mapping[str, Any] = entries[0] if entries else NOTHING
    of_it = f"batch {own.global_batch_size}: "
    problems = [*_with_place(verdict), *(of_it + problem for problem in _with_place(entry))]
    if not entries and not problems and not verdict.get("unprovable"):
        problems.append(f"{of_it}the gate has trained no step at it")
    return {
        **verdict,
        **{name: entry[name] for name in OWN if name in entry},
        "equivalent": entry["equivalent"] and not problems,
        "parts": [*verdict["parts"], *({**part, "name": of_it + part["name"]} for part in entry["parts"])],
        "problems": problems,
        "notes": [*verdict["notes"], *(of_it + note for note in entry["notes"])],
    }


def all_problems(verdict: Mapping[str, Any]) -> list[str]:
    """The problems of a verdict read from verdict.json: the shared ones, and those of every own batch."""
    own = [
        (entry["global_batch_size"], problem)
        for entry in verdict.get("own_batches", [])
        for problem in _with_place(entry)
    ]
    return [*_with_place(verdict), *(f"batch {batch}: {problem}" for batch, problem in own)]


def _with_place(entry: Mapping[str, Any]) -> list[str]:
    """Problems, the likely cause first, and where the training parts from the plain one.

    What was counted or seen says more than a figure, which only gets the usual cause of such a figure.
    """
    failed, where = [part for part in entry["parts"] if not part["passed"]], entry.get("where") or ""
    is_figure = [any(each.startswith(f"{part['name']}: ") for part in failed) for each in entry["problems"]]
    figures, others = (list(compress(entry["problems"], map(kind.__eq__, is_figure))) for kind in (True, False))
    if figures and not others:
        trials = {part["name"].partition(":")[0] for part in failed}
        cause = next((cause for trial, cause in CAUSES.items() if trial in trials), "")
        if "algorithm" in trials and where and " at step 1 " not in where:
            cause = LATER
        figures[0] = f"{cause}{figures[0]}"
    return [*others, *figures, *filter(None, [where])]
