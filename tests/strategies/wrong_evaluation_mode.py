"""Wrong: trains in evaluation mode, without dropout."""

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class EvaluationMode(ByHand):
    """Wrong: trains in evaluation mode, without dropout."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def build(self) -> None:
        self.build_whole()
        self.model.eval()
