"""The answer as files: `answer.json` for programs, and a batch script for each recommendation, with its run."""

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from relay.base.entry import MAIN, ROOT
from relay.base.files import write_json, write_text
from relay.base.printable import printable
from relay.comparison import words
from relay.comparison.answer import SCRIPT, Answer
from relay.comparison.candidates import Candidate
from relay.comparison.choice import Compared
from relay.comparison.request import Request
from relay.comparison.statistics import CONFIDENCE
from relay.process import meeting
from relay.run_folder import proof_notes
from relay.run_folder.places import Places
from relay.run_folder.run_chain import START
from relay.slurm.batch_script import BatchScript
from relay.spec.job import Job
from relay.spec.labels import flat
from relay.spec.run import Run, changed
from relay.spec.script import MEETING, filled, options_given, placeholders, started_by_torchrun

FORMAT = 2  # of answer.json
RECOMMENDED = "recommended"
AS_IN_TABLE = (
    "test_accuracy", "metric", "test_metric", "test_loss", "peak_memory_bytes", "peak_main_memory_bytes",
    "max_loss_difference", "unproven", "warning",
)  # fmt: skip
RELAY = (sys.executable, str(ROOT / MAIN))


@dataclass(frozen=True)
class Recommendation:
    """The run that the recommended training is, its job, the batch script that submits it, and lines for one's own."""

    run: Run
    job: Job | None
    script: BatchScript
    own_script: Sequence[str]


def recommendation(answer: Answer, results: Path) -> Recommendation | None:
    """What to submit; None where nothing can be recommended.

    It is a run of its own, with the seed of the first repeat: it trains the task anew, and stays out of the comparison.
    """
    best, request = answer.best, answer.request
    if best is None or request is None:
        return None
    run = replace(best.run, id=f"{RECOMMENDED}-{best.run.setting_id}", repeat=0)
    if answer.rules.epochs:
        steps = round(best.epochs * run.length.steps_per_epoch)
        run = changed(run, id=f"{run.id}-{best.epochs:g}-epochs", epochs=best.epochs, total_steps=max(1, steps))
    job = best.longest_job and replace(best.longest_job, memory_mb=request.memory_mb, minutes=request.minutes)
    results = results.resolve()
    plain = Job(**{name: value for name, value in asdict(request).items() if name in Job.__dataclass_fields__})
    own = own_script(run, request)
    options = {"--run": run.id, "--first": 0, "--last": run.length.total_steps, "--results": results}
    script = BatchScript(
        name=f"relay-{answer.task}",
        job=job or plain,
        jobs=request.jobs,
        site_flags=answer.site_flags,
        command=[*RELAY, "train", *(str(part) for pair in options.items() for part in pair)],
        folder=Path.cwd(),
        output=results / "logs" / f"{run.id}-%j.log",
        comments=words.lines(
            "script_comments.j2",
            answer=answer,
            run=run,
            places=Places(results, run.id),
            export=shlex.join([*RELAY, "export", "--run", run.id, "--results", str(results)]),
            own_script=[line or words.EMPTY for line in own],
        ),
    )
    return Recommendation(run, job, script, own)


def write(answers: Sequence[Answer], results: Path, margin: float) -> None:
    """Write `answer.json`, the batch scripts, and the runs that they train. Raises OSError."""
    recommendations = [recommendation(answer, results) for answer in answers]
    items = [as_json(answer, recommended) for answer, recommended in zip(answers, recommendations, strict=True)]
    value = {"format": FORMAT, "confidence": CONFIDENCE, "margin": margin, "answers": items}
    write_json(results / "answer.json", value)
    for old in results.glob("recommendation*.sbatch"):
        old.unlink()
    for recommended, answer in zip(recommendations, answers, strict=True):
        if recommended:
            prepare(recommended, answer, results)
            write_text(results / answer.script, recommended.script.render())
    if not any(recommendations):
        says_why = words.lines("nothing.sbatch.j2", answers=answers)
        write_text(results / SCRIPT, "".join(f"{printable(line)}\n" for line in says_why))


def prepare(recommended: Recommendation, answer: Answer, results: Path) -> None:
    """Write what the training reads: its specification, its start, and the gate that proves it."""
    places = Places(results, recommended.run.id)
    recommended.run.write(places.run / "run.json", recommended.job)
    if not (places.run / START).exists():
        write_json(places.run / START, {"generation": RECOMMENDED})
    assert answer.best is not None
    proof_notes.note(places.run, answer.best.repeats[0].planned.gate)
    (results / "logs").mkdir(exist_ok=True)  # Slurm makes no folder for its log


def as_json(answer: Answer, recommended: Recommendation | None) -> dict[str, Any]:
    """The answer for programs: settings, figures with intervals, reasons, what was not measured."""
    return {
        "task": answer.task,
        "trained": answer.trained,
        "sentence": words.told("sentence", answer),
        "certainty": answer.certainty,
        "certainty_in_short": words.told("in_short", answer),
        "certainty_in_words": words.told("certainty", answer),
        "uncertain_because": words.paragraphs("doubts", answer),
        "why_not_the_fastest": words.told("why_not_the_fastest", answer),
        "more_repeats_would_tell": answer.repeats_to_tell,
        "recommended": _setting(answer.best) if answer.best else None,
        "request": asdict(answer.request) if answer.request else None,
        "sbatch": recommended.script.block.splitlines() if recommended else [],
        "run": recommended.run.id if recommended else None,
        "script": answer.script if recommended else None,
        "reasons": words.paragraphs("reasons", answer),
        "runner_up": _compared(answer.runner_up) if answer.runner_up else None,
        "others": [_compared(each) for each in answer.others],
        "left_out": [asdict(each) for each in answer.left_out],
        "not_measured": words.paragraphs("not_measured", answer),
        "compared_by": answer.compared_by,
        "fastest": answer.fastest.name if answer.fastest else None,
        "cheapest": answer.cheapest.name if answer.cheapest else None,
        "rules": asdict(answer.rules) | {"price": answer.rules.price.model_dump()},
    }


def _compared(each: Compared) -> dict[str, Any]:
    beside = {
        "relation": each.relation,
        "relative_training_speed": asdict(each.ratio),
        "repeats_that_would_tell": each.repeats_to_tell,
        "training_hours": each.hours,
        "cost": each.spent,
    }
    return _setting(each.other) | beside


def _setting(candidate: Candidate) -> dict[str, Any]:
    row, run = candidate.row, candidate.run
    declared = {name: value for name, value in flat(run).items() if name in row}
    return {
        "setting": run.setting_id,
        "name": candidate.name,
        "runs": [repeat.run.id for repeat in candidate.repeats],
        "declared": declared | {"options": dict(run.strategy.options)},
        "gpus": run.shape.taken["gpus"],
        "cpu_cores": run.shape.taken["cpus"],
        "samples_per_second": asdict(candidate.speed),
        "seconds_per_epoch": None if run.strategy.script else asdict(candidate.seconds_per_piece),
        "training_hours": candidate.training_hours,
        "cost": candidate.spent,
        **{name: row[name] for name in AS_IN_TABLE},
    }


# As a measured run meets. `--standalone`, and backend c10d at an address, read pickles at a port that is open to all.
ON_ONE_NODE = (*meeting.TORCHRUN, "--rdzv-endpoint={folder}/agent")
ON_SEVERAL = ("--rdzv-backend=static", "--node-rank={node}", "--master-addr={address}", "--master-port={port}")
OF_JOB = {"node": "${SLURM_NODEID}", "address": "${MASTER_ADDR}", "port": "${MASTER_PORT}", "folder": "$(mktemp -d)"}


def own_script(run: Run, request: Request) -> list[str]:
    """The lines, for a job with this `request`. What the script has to do itself stands in comments.

    A command that was measured is started without this project, in the folder of the script.
    """
    script = run.strategy.script
    arguments = list(script.command) if script else ["torchrun", "your_script.py"]
    begin = started_by_torchrun(arguments)
    if begin is not None:
        arguments[begin:begin] = _meeting(arguments, begin, run)
    of_job = {**OF_JOB, "seed": str(run.seed), "repeat": "0"}
    command = re.sub("(?m)^$", words.EMPTY, " ".join(_in_shell(word, of_job) for word in arguments))
    return words.lines("own_script.sh.j2", run=run, request=request, command=command, folder=str(Path.cwd()))


def _meeting(arguments: Sequence[str], begin: int, run: Run) -> list[str]:
    """The options of torchrun that a command lacks."""
    given, shape = options_given(arguments, begin), run.shape
    count = [] if "--nproc-per-node" in given else [f"--nproc-per-node={shape.processes_per_node}"]
    if shape.nodes == 1:
        return [*count, *(() if given.keys() & {*MEETING} else ON_ONE_NODE)]
    if given.keys() & {"--rdzv-backend", "--rdzv-endpoint"}:
        return count
    nodes = [] if "--nnodes" in given else [f"--nnodes={shape.nodes}"]
    return [*nodes, *count, *(option for option in ON_SEVERAL if option.partition("=")[0] not in given)]


def _in_shell(word: str, of_job: Mapping[str, str]) -> str:
    """A word as a shell reads it: nothing in it is replaced but what a job knows."""
    if not set(placeholders([word])) & OF_JOB.keys():
        return shlex.quote(filled(word, of_job, last=True))
    escaped = re.sub(r'([\\"$`])', r"\\\1", word)
    return f'"{filled(escaped, of_job, last=True)}"'
