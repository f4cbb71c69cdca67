"""How a public dataset is described: where its files come from, how each is recognised, and what reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from relay.datasets.arrays import Arrays


@dataclass(frozen=True)
class KnownFile:
    """A file whose content is known in advance."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Archive:
    """A downloadable file and the members of it that are used. `.tar.gz` holds several, `.gz` exactly one."""

    file: KnownFile
    members: tuple[KnownFile, ...]


@dataclass(frozen=True)
class Source:
    """A public dataset.

    `read` makes the arrays of the verified members' contents, by name, and raises UserError where one is not of its
    format. `mirrors` are base addresses in the order in which they are tried. `folder` is torchvision's, below its
    `root`.
    """

    name: str
    read: Callable[[Mapping[str, bytes]], Arrays]
    folder: str
    mirrors: tuple[str, ...]
    archives: tuple[Archive, ...]
