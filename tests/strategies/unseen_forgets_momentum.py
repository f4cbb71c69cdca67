"""Wrong: each job but the first begins with an optimizer that has forgotten its state."""

from pathlib import Path

from relay.strategies.base import Requirements, Strategy


class ForgetsMomentum(Strategy):
    """Wrong: each job but the first begins with an optimizer that has forgotten its state."""

    requirements = Requirements(processes="one", divides=())

    def build(self) -> None:
        self.build_whole()

    def load(self, directory: Path) -> None:
        super().load(directory)
        self.optimizer.state.clear()
