"""The autoencoder of the tutorial that UTSA's page (document 002) leads to: 234,640 parameters for MNIST."""

from collections import OrderedDict

from torch import nn


def build(input_shape: tuple[int, ...], classes: int | None, width: int = 128) -> nn.Sequential:
    """(N, features) pixels to as many, through layers of `width` numbers, each with a ReLU."""
    features = input_shape[0]
    return nn.Sequential(
        OrderedDict(
            encoder1=nn.Linear(features, width),
            act1=nn.ReLU(),
            encoder2=nn.Linear(width, width),
            act2=nn.ReLU(),
            decoder1=nn.Linear(width, width),
            act3=nn.ReLU(),
            decoder2=nn.Linear(width, features),
            act4=nn.ReLU(),
        )
    )
