"""The files of a public dataset, whose content is known: nothing is parsed before its checksum proved right."""

import gzip
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line, sha256
from relay.datasets.arrays import Arrays

UNREADABLE = "cannot be read"


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

    `read` makes the arrays of the verified members' contents, by name. `mirrors` are base addresses in the order
    in which they are tried. `folder` is torchvision's, below its `root`.
    """

    name: str
    read: Callable[[Mapping[str, bytes]], Arrays]
    folder: str
    mirrors: tuple[str, ...]
    archives: tuple[Archive, ...]


def check_file(path: Path, expected: KnownFile) -> None:
    """Raises UserError, naming file, finding and expectation, unless `path` is exactly the expected file."""
    with errors_in_one_line(path, UNREADABLE):
        size_bytes = path.stat().st_size
        if path.is_dir():
            raise UserError(f"{path}: is a folder, expected a file of {expected.size_bytes:,} bytes")
        if size_bytes != expected.size_bytes:
            what = "truncated" if size_bytes < expected.size_bytes else "wrong"
            raise UserError(f"{path}: {what}: {size_bytes:,} bytes, expected {expected.size_bytes:,}")
        digest = sha256(path)
    if digest != expected.sha256:
        raise UserError(f"{path}: corrupted: SHA-256 is {digest}, expected {expected.sha256}")


def members_below(root: Path, source: Source) -> Iterator[tuple[str, bytes]]:
    """Name and verified content of each file of the source, taken from a folder in torchvision's layout.

    The files may lie extracted or as their archives, in `source.folder` below `root` or in `root` itself.
    Raises UserError for anything missing, unreadable, truncated or corrupted.
    """
    check_root(root, source)
    with errors_in_one_line(root, UNREADABLE):
        for archive in source.archives:
            folder = _folder_below(root, source, archive)
            if any((folder / member.name).exists() for member in archive.members):
                for member in archive.members:
                    path = folder / member.name
                    check_file(path, member)
                    yield member.name, path.read_bytes()
            else:
                path = folder / archive.file.name
                check_file(path, archive.file)
                yield from members_of(path, archive)


def check_root(root: Path, source: Source | None) -> None:
    """Raises UserError unless `root` is a folder that holds the dataset's files, or archives; none is read.

    `source`: None for a dataset that needs no files.
    """
    expected = "expected a folder, or null"
    if source is not None:
        files = ", ".join(archive.file.name for archive in source.archives)
        expected = f"expected a folder that holds {source.folder}/ or {files}"
    with errors_in_one_line(root, UNREADABLE):
        if not root.is_dir():
            problem = "is a file" if root.exists() else "does not exist"
            raise UserError(f"dataset_root: '{root}' {problem}; {expected}")
        if source is not None:
            for archive in source.archives:
                _folder_below(root, source, archive)


def folder_of(mirror: str) -> Path:
    """The folder of a `file://` address. Raises UserError where it names another machine, or no folder of this one."""
    parts = urlsplit(mirror)
    if parts.netloc not in ("", "localhost"):
        raise UserError(f"dataset_mirror: '{mirror}' names the machine '{parts.netloc}'; allowed: file:///folder")
    folder = Path(url2pathname(parts.path))
    if not folder.is_dir():
        raise UserError(f"dataset_mirror: '{mirror}': there is no folder {folder}; allowed: file:///folder")
    return folder


def members_of(path: Path, archive: Archive) -> Iterator[tuple[str, bytes]]:
    """Name and content of an archive's members, in its order.

    Its checksum has been verified, and stands for that of each member.
    """
    names = {member.name for member in archive.members}
    if not archive.file.name.endswith(".tar.gz"):
        with gzip.open(path) as stream:
            yield archive.members[0].name, stream.read()
        return
    # Members are read into memory, never extracted: no path from inside an archive is ever written to.
    with tarfile.open(path, "r:gz") as tar:
        for entry in tar:
            name = PurePosixPath(entry.name).name
            content = tar.extractfile(entry) if name in names else None
            if content is not None:
                yield name, content.read()


def _folder_below(root: Path, source: Source, archive: Archive) -> Path:
    """Where the archive, or any of its members, lies below `root`. Raises UserError where it does not."""
    for folder in (root / source.folder, root):
        if any((folder / file.name).exists() for file in (*archive.members, archive.file)):
            return folder
    names = [member.name for member in archive.members]
    listed = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    raise UserError(
        f"dataset_root: '{root}' holds no {source.name}: expected {source.folder}/{listed} or {archive.file.name}"
    )
