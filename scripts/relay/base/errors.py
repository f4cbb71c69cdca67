"""The one exception for a user's mistake: entry points print its line and exit, without a traceback."""

from relay.base.printable import printable


class UserError(ValueError):
    """One line that names the thing, its value, and what is allowed."""

    def __str__(self) -> str:
        return printable(super().__str__())


class Told(UserError):
    """A mistake whose line does not say what helps: `remedy` does."""

    def __init__(self, text: str, remedy: str) -> None:
        super().__init__(text)
        self.remedy = remedy


class Busy(UserError):
    """Another process is at work there: no fault of this one, and worth a retry."""


class PeerFailed(RuntimeError):
    """Another process of the run has failed and told it: no fault of this one."""


class Unavailable(UserError):
    """Slurm, or a network, gives no answer now: no fault of whoever asks, and worth a retry."""


class NoNode(UserError):
    """Slurm can start such a job on no node now: it waits, in the queue or with the driver."""


class NoCluster(Unavailable):
    """Slurm's commands are here, and no cluster that they could ask."""


class Diverged(UserError):
    """A loss is no number, or infinite: what the run trains cannot be used, and a retry would end the same."""


class NoRoom(UserError):
    """The run does not fit into the memory that it may use."""


class EndedItself(RuntimeError):
    """The program's own code asked the process to end, in the middle of its work."""
