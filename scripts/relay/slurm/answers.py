"""What Slurm's commands say where a request fails: whether it may pass, and what has become of the request."""

import re

# Messages of a controller that is down or busy; the request itself is right. The last one is scontrol's.
TRANSIENT = re.compile(
    "unable to contact|timed out|connection (refused|reset)|socket|zero bytes|in standby mode|unexpected message|"
    "temporarily un|transport endpoint|(send|receive) failure|no route to host|network is unreachable|persistent conn|"
    "not responding|rate limit|authentication (error|credential)|munge",
    re.I,
)
# Those of them with which a request has not reached the controller, or was not taken by it.
NOT_TAKEN = re.compile(
    "unable to contact slurm controller|connection refused|temporarily un|no route to host|network is unreachable|"
    "rate limit|authentication (error|credential)|munge",
    re.I,
)
CLOSED = re.compile("partition not available", re.I)  # inactive or drained, which passes; one that is down takes jobs
# What sbatch answers where one may submit no more: QOSMaxSubmitJobPerUserLimit, AssocGrpSubmitJobsLimit, …
SUBMIT_LIMIT = re.compile("SubmitJob")


def answer_lost(said: str) -> bool:
    """Whether a command's error leaves open what Slurm's controller has made of its request."""
    return bool(TRANSIENT.search(said)) and not NOT_TAKEN.search(said)
