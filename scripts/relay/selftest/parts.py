"""What the self-test does in jobs of its own: the faults that it plants, with how a job has to end that meets one.

The planner reads it: it needs no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from relay.base.ending import FAULT, INTERRUPTED
from relay.process.one_gpu import SHARED
from relay.spec.setting import Shape

RESUME = "resume"  # a run is killed, and goes on
NO_INTERFACE = "none0"
FIRST = "the first"  # of those that the variable has


@dataclass(frozen=True)
class Planted:
    """A fault. `ending`: the status of a job that meets it. `says`: what its line has to hold, one of these.

    `variables` are set by its processes, by the backend; no backend without them meets the fault, where there are any.
    `on_one_node`: processes on two nodes cannot meet it.
    """

    means: str
    ending: int
    says: tuple[str, ...]
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    on_one_node: bool = False

    def met_by(self, shape: Shape) -> bool:
        """Whether processes of this shape meet it."""
        return (not self.variables or shape.backend in self.variables) and (shape.nodes == 1 or not self.on_one_node)


FAULTS: Mapping[str, Planted] = {
    "own_error": Planted("one process fails while the other waits for it", FAULT, ("planted",)),
    "killed_peer": Planted("one process is killed", INTERRUPTED, ("killed",)),
    "hang": Planted("one process never comes to a collective", FAULT, ("collective", "hang", "timed out", "Timed out")),
    "no_memory": Planted("a process asks for more memory than there is", FAULT, ("no room",)),
    "wrong_interface": Planted(
        "the network interface that is named is not there",
        FAULT,
        (NO_INTERFACE, "interface"),
        {"nccl": {"NCCL_SOCKET_IFNAME": NO_INTERFACE}, "gloo": {"GLOO_SOCKET_IFNAME": NO_INTERFACE}},
    ),
    "duplicate_gpu": Planted(
        "two processes use one GPU",
        FAULT,
        ("Duplicate GPU", "using the same GPU"),
        {"nccl": {"CUDA_VISIBLE_DEVICES": FIRST, SHARED: "0"}},
        on_one_node=True,
    ),
}
PARTS = (RESUME, *FAULTS)
