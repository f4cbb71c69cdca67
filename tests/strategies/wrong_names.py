"""Wrong: its parameters have a wrapper's names, `module.conv1.weight` for `conv1.weight`."""

from collections import OrderedDict

from torch import nn

from relay.strategies._by_hand import ByHand
from relay.strategies.base import Requirements


class Names(ByHand):
    """Wrong: its parameters have a wrapper's names, `module.conv1.weight` for `conv1.weight`."""

    requirements = Requirements(processes="one", devices=("cpu",))

    def build(self) -> None:
        self.build_whole()
        self.model = nn.Sequential(OrderedDict(module=self.model))
