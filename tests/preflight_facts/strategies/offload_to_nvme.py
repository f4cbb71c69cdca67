"""A strategy with needs of its nodes, for plans only: data parallelism that says it offloads to a node's disk."""

from relay.strategies.base import Requirements
from relay.strategies.ddp import DDP


class OffloadToNVMe(DDP):
    """What a strategy of stack deepspeed states; the tests plan it and train it nowhere."""

    requirements = Requirements(
        stack="deepspeed", least_devices=2, divides=("samples",), node_needs={"cuda": ("libaio", "node_disk")}
    )
