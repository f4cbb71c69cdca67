"""What Slurm's commands say where a request fails: whether it may pass, and what has become of the request."""

from enum import Enum, auto

from relay.run_folder.known_faults import look_up


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


def meaning(said: str) -> Answer:
    """What the error means that a command has told in these words."""
    row = look_up(said, "slurm")
    return Answer[row.name] if row else Answer.UNKNOWN
