"""Wrong: trains in evaluation mode, without dropout."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class EvaluationMode(ByHand):
    """Wrong: trains in evaluation mode, without dropout."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def build(self) -> None:
        self.build_whole()
        self.model.eval()
