"""A public dataset's verified files: from a copy that the user has, or downloaded."""

import tempfile
from pathlib import Path

from relay.base.errors import UserError
from relay.datasets.cifar10 import CIFAR10
from relay.datasets.files import Source, members_below, members_of
from relay.datasets.mnist import MNIST

#: By the name of the data that a built-in task makes of it; the other tasks' data are generated.
SOURCES = {CIFAR10.name: CIFAR10, MNIST.name: MNIST, "mnist-pixels": MNIST}


def members(source: Source, root: Path | None, mirror: str | None) -> dict[str, bytes]:
    """Name and content of each file. `root` is a folder with a copy in torchvision's layout.

    Without it the files are downloaded, from `mirror` in place of the source's own addresses if given. Raises
    UserError for anything missing, unreachable or corrupted.
    """
    if root is not None:
        return dict(members_below(root.absolute(), source))
    if mirror and not mirror.startswith(("http://", "https://", "file://")):
        raise UserError(f"dataset_mirror: '{mirror}' must begin with http://, https:// or file://")
    from relay.datasets.download import download  # with requests, which jobs may be without

    mirrors = (mirror,) if mirror else source.mirrors
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        for archive in source.archives:
            path = download(archive.file, mirrors, Path(folder))
            contents.update(members_of(path, archive))
            path.unlink()
    return contents
