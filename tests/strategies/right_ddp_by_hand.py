"""Right: gradients are averaged by hand, without a wrapper."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class DDPByHand(ByHand):
    """Right: gradients are averaged by hand, without a wrapper."""

    requirements = Requirements(least_devices=2, divides=("samples",))
