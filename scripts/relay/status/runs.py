"""How each run of a plan stands: done, failed, running, queued, begun, trained, or still to do."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from relay.base import lock
from relay.base.clock import clock, duration
from relay.base.files import read_json_or
from relay.chain.sealed import complete
from relay.run_folder import attempts, faults, run_chain
from relay.run_folder.places import Places
from relay.slurm.commands import QueuedJob, waits
from relay.spec.run import Run
from relay.status import used

# "begun": no job of it runs or waits just now. "trained": so is all of it, and its summary comes next.
SILENT_SECONDS = 180.0  # after which it is told that a command prints nothing
State = Literal["done", "failed", "running", "queued", "begun", "trained", "to do"]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a run stands.

    `step` of `steps` is trained. `jobs_done` of `jobs` segments have ended; `jobs` is None where they are not planned
    yet. Speed and `seconds_left`, which is training alone, are known of a run that has trained. `why` says why it
    failed or waits, or what is wrong while it runs. `uses`: what it uses of each node.
    """

    run: Run
    words: str
    state: State
    step: int
    steps: int
    jobs_done: int
    jobs: int | None
    samples_per_second: float | None = None
    seconds_left: float | None = None
    why: str = ""
    uses: tuple[str, ...] = ()


def standing(
    run: Run, words: str, ends: Sequence[int] | None, results: Path, queue: Mapping[str, QueuedJob] | None
) -> Standing:
    """How a run stands. `words` name it; `ends` are the steps at which its jobs end, None where they are not known.

    `queue` has Slurm's jobs by what they are for, as `queued` reads them; None on a machine without Slurm.
    """
    places = Places(results, run.id)
    done = [end for end in ends or () if places.state(end).exists()]
    newest = None if run.strategy.script else _pace(places)  # nobody knows how many steps a script has
    state, why = _state(places, run, queue)
    nodes = used.newest(places.work) if state == "running" else []
    if state == "running":
        why = (silent(places) if run.strategy.script else "") or used.idle(nodes)
    if state == "begun" and run.length.total_steps in done:
        state = "trained"
    left = max(0.0, newest.seconds_to(run.length.total_steps)) if newest else None
    if left is not None and newest is not None and state == "running":
        left = max(0.0, left - (time.time() - newest.reached))
    return Standing(
        run=run,
        words=words,
        state=state,
        step=run.length.total_steps if state == "done" else max(done[-1] if done else 0, _trained(places, newest)),
        steps=run.length.total_steps,
        jobs_done=len(done),
        jobs=len(ends) if ends is not None else None,
        samples_per_second=newest.steps_per_second * run.batch.global_batch_size if newest else None,
        seconds_left=None if state in ("done", "trained", "failed") else left,
        why=why,
        uses=tuple(used.lines(nodes)),
    )


def silent(places: Places) -> str:
    """That a command has printed nothing for minutes; '' where it has, or has no log yet."""
    logs = (places.results / "logs" / "segment" / places.run_id).glob("*.log")
    seconds = time.time() - max((log.stat().st_mtime for log in logs), default=time.time())
    return f"has printed nothing for {duration(seconds)}" if seconds > SILENT_SECONDS else ""


def _trained(places: Places, newest: attempts.Pace | None) -> int:
    """The step that is trained: what the newest attempt has recorded, else the checkpoint from which it goes on."""
    return newest.step if newest else max(complete(places.work), default=0)


def _state(places: Places, run: Run, queue: Mapping[str, QueuedJob] | None) -> tuple[State, str]:
    """The state, and why it is so."""
    summary = read_json_or(places.run / "summary.json", None)
    if isinstance(summary, dict) and "status" in summary:  # else it is damaged, and counts as not there
        return ("failed", str(summary.get("reason", ""))) if summary["status"] == "failed" else ("done", "")
    if queue is None:
        if lock.held(places.work):
            return "running", ""
    elif job := next((job for what, job in queue.items() if f"_{run.id}_" in what), None):
        return ("queued", _why_queued(job)) if waits(job.state) else ("running", "")
    if fault := faults.recorded(places.work):
        return "failed", fault.error
    return ("begun" if run_chain.begun(places.run) else "to do"), ""


def _why_queued(job: QueuedJob) -> str:
    """Slurm's reason, and when it expects the job to start, as far as it says so."""
    reason = "" if job.reason == "None" else job.reason  # Slurm has not looked at the job yet
    return reason + (f", expected to start about {clock(job.starts_at)}" if job.starts_at else "")


def _pace(places: Places) -> attempts.Pace | None:
    try:
        return attempts.pace(places.work)
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError):  # damaged: then nothing is known
        return None


def queued(jobs: Sequence[QueuedJob]) -> dict[str, QueuedJob]:
    """Slurm's unfinished jobs by what they are for, as the executor's comment says: rule_segment_wildcards_RUN_100."""
    return {job.comment: job for job in jobs if job.comment}
