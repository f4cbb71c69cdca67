"""One linear layer: the regression on random data of documents 001 (10 features) and 004 (20 features)."""

from collections import OrderedDict

from torch import nn


def build(input_shape: tuple[int, ...], classes: int | None) -> nn.Sequential:
    """(N, features) vectors to (N, 1) predictions."""
    return nn.Sequential(OrderedDict(linear=nn.Linear(input_shape[0], classes or 1)))
