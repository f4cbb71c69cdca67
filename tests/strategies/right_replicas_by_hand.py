"""Right: several replicas on each device, gradients averaged by hand."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class ReplicasByHand(ByHand):
    """Right: several replicas on each device, gradients averaged by hand."""

    requirements = Requirements(processes="several per device", divides=("samples",))
