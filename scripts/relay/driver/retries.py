"""What the driver learns of a job that failed, for `relay.run_folder.try_again`; the one block when it is given up."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from snakemake.logging import logger

from relay.base import ending, lock
from relay.base.ending import QUOTED, Ending
from relay.base.files import end_of
from relay.chain.files import disk_refusal
from relay.driver.job_requests import JobRequests
from relay.driver.submission import NOT_TAKEN, REFUSED
from relay.driver.terminal import SEGMENT
from relay.run_folder.known_faults import look_up
from relay.run_folder.sound_checkpoints import saved_step
from relay.run_folder.try_again import Case, Tried, given_up
from relay.spec.labels import counted
from relay.spec.run import Specification

RESULTS = Path("results")
LAST_LINES = 5
LOG_BYTES = 2**16  # at its end, that are searched for words of a kill for memory
NO_WORD = "its program ended without a word: killed, a lost node, or out of memory?"
LESS_MEMORY = "let it need less (a smaller batch, fewer data_workers, fewer processes on a node), or use larger nodes"
LOOK_AT_LOG = "the log says more; the same call tries again"
CHANGE = "change what is asked for (`snakemake plan` shows it), then start the same call again"
LONGER = "its time limit of {} was too short: raise runtime_minutes, then start the same call again"
PREFLIGHT = "preflight_job"  # the rule


@dataclass
class Retries:
    """What is known of the jobs that failed in this call.

    `said_of`: what the executor said of each, by Snakemake's number of the job.
    `requests`: what jobs ask Slurm for, by what `specification_of` says that a job computes: None for one that runs on
    this machine, by a rule of its own.
    """

    said_of: Mapping[int, str] = field(default_factory=dict)
    requests: JobRequests | None = None
    specification_of: Callable[[Any], Specification | None] = lambda job: None
    enlarged: set[int] = field(default_factory=set)  # jobs that were tried again after they were killed for memory
    reached: dict[str, int] = field(default_factory=dict)  # the newest checkpoint of each run, when last looked at
    fruitless: dict[int, int] = field(default_factory=dict)  # a job's attempts in a row that came no further
    said: set[str] = field(default_factory=set)  # how jobs of this call have failed

    def __post_init__(self) -> None:
        for path in (RESULTS / "logs").rglob("*.ending.json"):  # by jobs of earlier calls
            path.unlink()
        for work in (RESULTS / "checkpoints").glob("*/"):
            self.reached[work.name] = _newest(work.name)

    def times(self, job: Any) -> int:
        """How often this job, which has just failed, may be tried again in all. Says what follows: to be asked once."""
        log = Path(job.log[0]) if job.log else None
        end = self._ending(job, log)
        end, reason = self._decided(job, self._case(job, log, end), end)
        if reason is not None or job.rule.restart_times == 0:
            self._give_up(job, end, reason or "", log)
            return 0
        logger.info(f"{_where(job)}\n  {end.what.splitlines()[0]}; goes on with attempt {job.attempt + 1}")
        _keep(log)
        return int(job.attempt)

    def _decided(self, job: Any, case: Case, end: Ending) -> tuple[Ending, str | None]:
        """What is said of a job's end, and why it is given up, as `given_up` tells. Another try's requests are set."""
        tried = Tried(number=job.attempt, retries=job.rule.restart_times)
        if case is Case.FOR_MEMORY:
            end, spent = self._enlarged(job, end)
            tried = replace(tried, memory_spent=spent)
        elif case is not Case.FAULT and job.rule.name == SEGMENT:
            tried = self._of_training(job, tried)
        reason = given_up(case, tried)
        if not end.node or reason is not None:
            return end, reason
        # Its hardware has failed, whatever else was said.
        specification = self.specification_of(job)
        if specification and self.requests and self.requests.leave_out(specification, end.node):
            return replace(end, what=f"{end.what}; node {end.node} is left out"), None
        return end, given_up(Case.HARDWARE, replace(tried, node_without_other=end.node))

    def _give_up(self, job: Any, end: Ending, reason: str, log: Path | None) -> None:
        """Tell of the failure, and write it down for the report. Words that were said before are not said again."""
        words = end.what.partition(" failed: ")[2] or end.what
        if words in self.said:
            end = replace(end, what=f"as before: {words.partition(QUOTED)[0]}", remedy="")
        self.said.add(words)
        logger.error(block(_where(job), end, reason, log))
        if log and end.status != ending.FAULT:  # a fault is the job's own word, or that of a disk without room
            ending.record(end, log)

    def _case(self, job: Any, log: Path | None, end: Ending) -> Case:
        """What has ended a job."""
        if end.status == ending.FAULT:
            return Case.FAULT
        if end.deadline:
            return Case.DEADLINE
        # Words of Slurm's or of the kernel's.
        text = f"{self.said_of.get(job.jobid, '')}\n{end_of(log, LOG_BYTES)}"
        if look_up(text, "logs"):
            return Case.FOR_MEMORY
        return Case.HARDWARE if end.node else Case.UNKNOWN

    def _ending(self, job: Any, log: Path | None) -> Ending:
        """What the job said of its end; else what can be found out."""
        if end := log and ending.read(log):
            return end
        if (error := disk_refusal(RESULTS)) and ending.remedy_of(error):
            return Ending(ending.FAULT, f"{RESULTS.resolve()}: {error.strerror}", ending.remedy_of(error))
        said = self.said_of.get(job.jobid) or NO_WORD
        if said.startswith(REFUSED):
            ending.record(refused := Ending(ending.FAULT, said, CHANGE), log)
            return refused
        if said.startswith(NOT_TAKEN):  # no job has run, and there is no log
            remedy = f"if Slurm's words ask for it, {CHANGE}; else the same call tries again"
            return Ending(ending.INTERRUPTED, said, remedy)
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log and log.is_file() else []
        # A preflight has a limit of its own, within which a sound node has done all.
        late = "'TIMEOUT'" in said and job.rule.name != PREFLIGHT
        remedy = LONGER.format(counted(job.resources.get("runtime"), "minute")) if late else LOOK_AT_LOG
        return Ending(ending.INTERRUPTED, "\n".join([said, *(f"| {line}" for line in lines)]), remedy)

    def _enlarged(self, job: Any, end: Ending) -> tuple[Ending, str]:
        """What is said of a job that was killed for memory and asks for more; and why that is in vain, or ''."""
        had = int(job.resources.get("mem_mb", 0) or 0)
        specification, before = self.specification_of(job), job.jobid in self.enlarged
        asks = self.requests.more_memory(specification, had) if self.requests and specification else None
        self.enlarged.add(job.jobid)
        again = "twice in a row" if before else ""
        if asks is None:  # of this machine, or of a partition that gives memory by itself: others may have used it
            cause = f"{Case.FOR_MEMORY}: it needed more main memory than it could have"
            return replace(end, what=cause, remedy=LESS_MEMORY), again
        cause = f"{Case.FOR_MEMORY} with {had} MB a node"
        if asks <= had:
            return Ending(end.status, cause, LESS_MEMORY), "no node has more"
        if before:
            return Ending(end.status, cause, f"the same call tries with {asks} MB; or {LESS_MEMORY}"), again
        return Ending(end.status, f"{cause}, asks for {asks} MB now"), ""

    def _of_training(self, job: Any, tried: Tried) -> Tried:
        """The same with what is known of a training: how often in a row it has saved nothing newer."""
        run, first = job.wildcards.run, int(job.params.first)
        # What a killed job has left may still save, on whatever node; and another job may train the run.
        held = lock.held(RESULTS / "checkpoints" / run)
        before, now = max(self.reached.get(run, 0), first), _newest(run)
        self.reached[run] = now
        self.fruitless[job.jobid] = 0 if now > before else self.fruitless.get(job.jobid, 0) + 1
        return replace(tried, fruitless=self.fruitless[job.jobid], step=now, held=held)


def block(where: str, end: Ending, reason: str, log: Path | None) -> str:
    """What the terminal shows of a failure, once: where, what, remedy, log, and last what is quoted of its output."""
    first_part, *quoted = end.what.split(QUOTED)
    parts = {
        "what": first_part,
        "given up": reason,
        "remedy": end.remedy or (LOOK_AT_LOG if reason else ""),
        "log": str(log or ""),
        "output": "\n".join(quoted),
    }
    lines = [f"FAILED: {where}"]
    for name, text in parts.items():
        first, *rest = text.splitlines() or [""]
        if first:
            lines += [f"  {name:9} {first}", *(" " * 12 + line for line in rest)]
    return "\n".join(lines)


def _where(job: Any) -> str:
    """The job in words: the first line of its rule's message."""
    return str(job.message or f"rule {job.rule.name}").splitlines()[0]


def _newest(run: str) -> int:
    return saved_step(RESULTS / "checkpoints" / run)


def _keep(log: Path | None) -> None:
    """Put an attempt's log aside, which Snakemake removes before the next attempt; what it told is not the next one's.

    That one may never start, and tell nothing itself.
    """
    if log:
        ending.beside(log).unlink(missing_ok=True)
    if log and log.is_file():
        log.rename(log.with_suffix(f".attempt-{len(list(log.parent.glob(f'{log.stem}.attempt-*'))) + 1}.log"))
