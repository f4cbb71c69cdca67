"""What Slurm's commands say where a request fails: whether it may pass, and what has become of the request."""

import re
from enum import Enum, auto


class Answer(Enum):
    """What an error means for the request."""

    FULL = auto()  # one may submit no more now
    NOT_TAKEN = auto()  # the controller is down or busy: the request has not reached it, or was not taken
    LOST = auto()  # the same, and the request may have been taken
    CLOSED = auto()  # the partition is inactive or drained, which passes; one that is down takes jobs
    NO_NODE = auto()  # no node can take the job now; `sbatch --test-only` says so where sbatch would queue it
    NO_SUCH_NODE = auto()  # no node can ever take it; `sbatch --test-only` says so, too, where nodes are away
    REFUSED = auto()  # another try would only repeat it
    UNKNOWN = auto()  # it may be of a fault that passes


# Slurm's words (`src/common/slurm_errno.c`). The first that fit count.
_TABLE = {
    Answer.FULL: "SubmitJob",  # as in QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit
    Answer.NOT_TAKEN: "unable to contact slurm controller|connection refused|temporarily un|no route to host|"
    "network is unreachable|rate limit|authentication (error|credential)|munge|configuration source|DNS SRV lookup|"
    "I/O error writing|unable to create job record",
    Answer.LOST: "unable to contact|timed out|connection reset|socket|zero bytes|in standby mode|unexpected message|"
    "transport endpoint|(send|receive) failure|persistent conn|not responding",
    Answer.CLOSED: "partition not available",
    Answer.NO_NODE: "nodes are busy|node not available|not available now|not usable now",
    Answer.NO_SUCH_NODE: "requested node configuration is not available",
    Answer.REFUSED: r"invalid (account|partition|node count|--)|invalid .*specifi|(specification|limit|reservation) "
    "(is )?invalid|violates accounting|denied|not permitted|than permitted|not in this partition|unrecognized option|"
    "can ?not be satisfied|no partition specified|missing time limit|memory required by task is not available",
}
_PATTERNS = {answer: re.compile(words, re.I) for answer, words in _TABLE.items()}


def meaning(said: str) -> Answer:
    """What the error means that a command has told in these words."""
    return next((answer for answer, pattern in _PATTERNS.items() if pattern.search(said)), Answer.UNKNOWN)
