"""Wrong: declares to divide optimizer state, and holds all of it on every rank."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class DivisionClaimed(ByHand):
    """Wrong: declares to divide optimizer state, and holds all of it on every rank."""

    requirements = Requirements(least_devices=2, divides=("samples", "optimizer"))
