"""Wrong: its checkpoints have names of its own, so that no other strategy can go on from them."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class CheckpointOfItsOwn(ByHand):
    """Wrong: each rank writes a file of its own, which only this strategy can read."""

    requirements = Requirements(least_devices=2, divides=("samples",))

    def save(self, directory: Path) -> Future[Any]:
        directory.mkdir(parents=True, exist_ok=True)
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(state, directory / f"rank-{self.ranks.rank}.pt")
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    def load(self, directory: Path) -> None:
        state = torch.load(directory / f"rank-{self.ranks.rank}.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
