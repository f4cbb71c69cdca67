"""The answer as files: `answer.json` for programs, and a batch script for each recommendation, with its run."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from relay.base.entry import MAIN, ROOT
from relay.base.files import write_json
from relay.comparison import answer_words as words
from relay.comparison.answer import SCRIPT, Answer
from relay.comparison.candidates import Candidate, Compared, cores, gpus
from relay.comparison.columns import remove_old, write_whole
from relay.comparison.own_script import own_script
from relay.comparison.statistics import CONFIDENCE, Estimate
from relay.run_folder import proofs
from relay.run_folder.chain import CHAIN
from relay.run_folder.places import Places
from relay.slurm.batch_script import BatchScript
from relay.spec.job import Job
from relay.spec.labels import flat
from relay.spec.run import Run, changed

JSON = "answer.json"
FORMAT = 1  # of answer.json
RECOMMENDED = "recommended"
RELAY = (sys.executable, str(ROOT / MAIN))


@dataclass(frozen=True)
class Recommendation:
    """The run that the recommended training is, its job, and the batch script that submits it."""

    run: Run
    job: Job | None
    script: BatchScript


def recommendation(answer: Answer, results: Path) -> Recommendation | None:
    """What to submit; None where nothing can be recommended.

    It is a run of its own, with the seed of the first repeat: it trains the task anew, and stays out of the comparison.
    """
    best, asked = answer.best, answer.request
    if best is None or asked is None:
        return None
    run = replace(best.run, id=f"{RECOMMENDED}-{best.run.setting_id}", repeat=0)
    if answer.rules.epochs:
        steps = round(best.epochs * run.length.steps_per_epoch)
        run = changed(run, id=f"{run.id}-{best.epochs:g}-epochs", epochs=best.epochs, total_steps=max(1, steps))
    job = replace(answer.job, memory_mb=asked.memory_mb, minutes=asked.minutes) if answer.job else None
    results = results.resolve()
    plain = Job(
        nodes=asked.nodes,
        tasks_per_node=asked.tasks_per_node,
        cpus_per_task=asked.cpus_per_task,
        gpus_per_node=asked.gpus_per_node,
        memory_mb=asked.memory_mb,
        minutes=asked.minutes,
    )
    options = {"--run": run.id, "--first": 0, "--last": run.length.total_steps, "--results": results}
    script = BatchScript(
        name=f"relay-{answer.task}",
        job=job or plain,
        jobs=asked.jobs,
        site_flags=answer.site_flags,
        command=[*RELAY, "train", *(str(part) for pair in options.items() for part in pair)],
        folder=Path.cwd(),
        output=results / "logs" / f"{run.id}-%j.log",
        comments=_comments(answer, run, results),
    )
    return Recommendation(run, job, script)


def write(answers: Sequence[Answer], results: Path, margin: float) -> None:
    """Write `answer.json`, the batch scripts, and the runs that they train. Raises UserError."""
    made = [recommendation(answer, results) for answer in answers]
    told = [as_json(answer, found) for answer, found in zip(answers, made, strict=True)]
    value = {"format": FORMAT, "confidence": CONFIDENCE, "margin": margin, "answers": told}
    write_whole(results / JSON, json.dumps(value, indent=1) + "\n")
    remove_old(results, "recommendation*.sbatch")
    for found, answer in zip(made, answers, strict=True):
        if found:
            prepare(found, answer, results)
            write_whole(results / answer.script, found.script.render())
    if not any(made):
        write_whole(results / SCRIPT, _nothing(answers))


def prepare(found: Recommendation, answer: Answer, results: Path) -> None:
    """Write what the training reads: its specification, its start, and the gate that proves it."""
    places = Places(results, found.run.id)
    found.run.write(places.run / "run.json", found.job)
    if not (places.run / CHAIN).exists():
        write_json(places.run / CHAIN, {"generation": RECOMMENDED})
    assert answer.best is not None
    proofs.note(places.run, answer.best.records[0].gate)
    (results / "logs").mkdir(exist_ok=True)  # Slurm makes no folder for its log


def _comments(answer: Answer, run: Run, results: Path) -> list[str]:
    assert answer.request is not None
    script = run.strategy.script
    export = [*RELAY, "export", "--run", run.id, "--results", results]
    of_model = [
        f"It trains the run {run.id}. Its checkpoints will be in {Places(results, run.id).work}.",
        "When it has ended, this writes its model as safetensors:",
        f"    {shlex.join(map(str, export))} --output model.safetensors",
        "For a script of your own, keep the lines of #SBATCH, and put these in place of all others:",
    ]
    of_command = [
        f"It runs your command in a folder of its own, {Places(results, run.id).folder}.",
        "Without Torch Relay, keep the lines of #SBATCH, and put these in place of all others:",
    ]
    lines = [
        f"Torch Relay's recommendation. Submit it as it stands: sbatch results/{answer.script}",
        words.sentence(answer),
        words.certainty(answer),
        words.why_not_the_fastest(answer),
        f"Memory: {answer.request.memory_why}.",
        f"Time: {answer.request.time_why}.",
        *(of_command if script else of_model),
        *(f"    {line}" for line in own_script(run, answer.request)),
    ]
    return [" ".join(line.splitlines()) for line in lines if line]


def _nothing(answers: Sequence[Answer]) -> str:
    """A script that says why there is nothing to submit."""
    lines = [f"{words.sentence(answer)} {words.certainty(answer)}" for answer in answers] or ["Nothing was planned."]
    told = "\n".join(f"# {' '.join(line.split())}" for line in lines)
    return f'#!/bin/bash\n{told}\necho "Torch Relay has nothing to recommend: this file says why." >&2\nexit 1\n'


def as_json(answer: Answer, found: Recommendation | None) -> dict[str, Any]:
    """The answer for programs: settings, figures with intervals, reasons, what was not measured."""
    return {
        "task": answer.task,
        "trained": answer.trained,
        "sentence": words.sentence(answer),
        "certainty": answer.certainty,
        "certainty_in_short": words.in_short(answer),
        "certainty_in_words": words.certainty(answer),
        "uncertain_because": answer.doubts,
        "why_not_the_fastest": words.why_not_the_fastest(answer),
        "more_repeats_would_tell": answer.repeats,
        "recommended": _setting(answer.best) if answer.best else None,
        "request": asdict(answer.request) if answer.request else None,
        "sbatch": found.script.block.splitlines() if found else [],
        "run": found.run.id if found else None,
        "script": answer.script if found else None,
        "reasons": words.reasons(answer),
        "runner_up": _compared(answer.runner_up) if answer.runner_up else None,
        "others": [_compared(each) for each in answer.others],
        "left_out": [asdict(each) for each in answer.left_out],
        "not_measured": words.not_measured(answer),
        "compared_by": f"the time to {answer.goal}" if answer.goal else "the time of the whole training",
        "fastest": answer.fastest.name if answer.fastest else None,
        "cheapest": answer.cheapest.name if answer.cheapest else None,
        "rules": asdict(answer.rules) | {"price": answer.rules.price.model_dump()},
    }


def _compared(each: Compared) -> dict[str, Any]:
    told = {"relation": each.relation, "relative_speed": _estimate(each.ratio), "repeats_that_would_tell": each.repeats}
    return {**_setting(each.other), **told}


def _setting(candidate: Candidate) -> dict[str, Any]:
    row, run = candidate.row, candidate.run
    declared = {name: value for name, value in flat(run).items() if name in row}
    return {
        "setting": run.setting_id,
        "name": candidate.name,
        "runs": [record.run.id for record in candidate.records],
        "declared": declared | {"options": dict(run.strategy.options)},
        "gpus": gpus(run),
        "cpu_cores": cores(run),
        "samples_per_second": _estimate(candidate.speed),
        "seconds_per_epoch": None if run.strategy.script else _estimate(candidate.seconds_per_piece),
        "training_hours": candidate.training_hours,
        "cost": candidate.spent,
        **{name: row[name] for name in ("test_accuracy", "metric", "test_metric", "test_loss")},
        **{name: row[name] for name in ("peak_memory_bytes", "peak_main_memory_bytes", "max_loss_difference")},
        **{name: row[name] for name in ("unproven", "warning")},
    }


def _estimate(value: Estimate) -> dict[str, float | None]:
    return asdict(value)
