"""A job that sbatch has not taken, or not in its own words: Slurm has it all the same, takes it later, or never."""

import re
import shlex
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from relay.base.errors import UserError
from relay.driver.waiting import News
from relay.slurm import commands
from relay.slurm.answers import Answer, meaning

_SHARED = re.compile("Grp|PerAccount")  # a limit that counts jobs of others, too
# How long a limit is waited for while this user has no other job. Slurm counts a job for some seconds after its end.
OWN_LIMIT_SECONDS = 60.0
SHARED_LIMIT_SECONDS = 24 * 3600.0
PAUSE_SECONDS = 5.0  # the first between two tries; each is twice as long
LONGEST_PAUSE_SECONDS = 60.0
IN_VAIN = "You have no other job in Slurm's queue: the limit may be 0 (`sacctmgr show assoc` and `show qos`)"
REFUSED = "Slurm refuses the job: "  # a retry would only repeat it
NOT_TAKEN = "Slurm has not taken the job: "
# Why jobs are waited with, however long that lasts.
_PASSES = {
    Answer.NOT_TAKEN: "its controller is busy or down (`scontrol ping`)",
    Answer.CLOSED: "the partition is inactive or drained (`sinfo`)",
    Answer.NO_NODE: "its nodes are busy, away or reserved (`sinfo`)",
}
_ERROR = re.compile(r"sbatch: error: (?:Batch job submission failed: )?(.*)")
_CALL = "sbatch call:"  # of the plugin: what follows it are its words, not Slurm's


@dataclass
class Submission:
    """The submissions of a driver's jobs for which the same limits hold; `name` is that of all its jobs.

    `wait`: until the driver ends, at most so many seconds; it tells whether the driver ends.
    """

    name: str
    news: News
    wait: Callable[[float], bool]
    partition: str = ""
    clock: Callable[[], float] = time.monotonic
    _pause: float = field(default_factory=lambda: PAUSE_SECONDS)
    _alone_since: float | None = None  # since when a limit is reached, and no other job of this user's is in the queue

    def done(self) -> None:
        """A job was submitted, or refused."""
        self._alone_since, self._pause = None, PAUSE_SECONDS
        self.news.submitted(self.partition)

    def sent(self, message: str, others: Collection[str]) -> tuple[str, Path] | None:
        """The id and the log of a job that Slurm has, although sbatch has said this; None where it has none.

        `others` are the ids of jobs whose submission is known. Until Slurm answers, it is asked again: a job that is
        submitted twice would wait for itself.
        """
        said, _, call = message.partition(_CALL)
        if meaning(said) is not Answer.LOST:
            return None
        # The job's own command follows the options: in the call, or in a script below it.
        words = shlex.split(call.strip().partition("\n")[0].partition(" --wrap=")[0])
        options = dict(pairwise(words))
        while self._waits(Answer.NOT_TAKEN):
            with suppress(UserError):
                ids = (job.id for job in commands.named(self.name) if job.comment == options.get("--comment"))
                new = next((id for id in ids if id not in others), None)
                return (new, Path(options["--output"].replace("%j", new))) if new else None
        return None

    def given_up(self, message: str) -> str:
        """Why a job that Slurm does not have is not submitted any more; '', after a pause, where it is to be now."""
        said = message.partition(_CALL)[0]
        answer = meaning(said)
        if answer is Answer.LOST:  # it was waited for an answer on that
            return message if self.wait(0) else ""
        longest = SHARED_LIMIT_SECONDS if _SHARED.search(said) else OWN_LIMIT_SECONDS
        if answer is Answer.FULL and self._alone() >= longest:
            return f"{REFUSED}{_words(said)}. {IN_VAIN}"
        if answer is Answer.FULL or answer in _PASSES:
            return "" if self._waits(answer) else message
        if answer in (Answer.REFUSED, Answer.NO_SUCH_NODE):
            return f"{REFUSED}{_words(said)}"
        self.wait(PAUSE_SECONDS)  # a fault that passes needs time
        return f"{NOT_TAKEN}{_words(said)}"

    def _waits(self, answer: Answer) -> bool:
        """Say why nothing is submitted, and wait; False where the driver ends meanwhile."""
        if answer is Answer.FULL:
            self.news.full(self.partition)
        else:
            self.news.away(self.partition, _PASSES[answer])
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return not self.wait(pause)

    def _alone(self) -> float:
        """For how many seconds a limit has been reached while no other job of this user's was in the queue."""
        try:
            if commands.any_other():
                self._alone_since = None
                return 0.0
        except UserError:
            return 0.0
        self._alone_since = self._alone_since or self.clock()
        return self.clock() - self._alone_since


def _words(said: str) -> str:
    """Slurm's own words, out of the plugin's, which quotes them."""
    lines = [line.removesuffix("'.") for line in _ERROR.findall(said)]
    return "; ".join(lines) or said.strip()
