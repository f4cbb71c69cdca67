"""Reading files whose content is known: nothing is parsed before its size and its checksum proved right."""

from __future__ import annotations

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit
from urllib.request import url2pathname

from relay.base.errors import UserError
from relay.base.files import sha256
from relay.datasets.sources import Archive, KnownFile, Source


def check_file(path: Path, expected: KnownFile) -> None:
    """Raises UserError, naming file, finding and expectation, unless `path` is exactly the expected file."""
    try:
        _check_size(str(path), _size(path, expected), expected)
        _check_digest(str(path), sha256(path), expected)
    except OSError as error:
        raise _unreadable(path, error) from error


def members_below(root: Path, source: Source) -> Iterator[tuple[str, bytes]]:
    """Name and verified content of each file of the source, taken from a folder in torchvision's layout.

    The files may lie extracted or as their archives, in `source.folder` below `root` or in `root` itself.
    Raises UserError for anything missing, unreadable, truncated or corrupted.
    """
    check_root(root, source)
    for archive in source.archives:
        folder = _folder_below(root, source, archive)
        if any(_exists(folder / member.name) for member in archive.members):
            yield from ((member.name, _read(folder / member.name, member)) for member in archive.members)
        else:
            yield from members_of(folder / archive.file.name, archive)


def check_root(root: Path, source: Source | None) -> None:
    """Raises UserError unless `root` is a folder that holds the dataset's files, or archives; none is read.

    `source`: None for a dataset that needs no files.
    """
    expected = f"expected a folder that holds {_layout(source)}" if source else "expected a folder, or null"
    if not _exists(root):
        raise UserError(f"dataset_root: '{root}' does not exist; {expected}")
    if not root.is_dir():
        raise UserError(f"dataset_root: '{root}' is a file; {expected}")
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
    """Name and verified content of the archive's members, in the archive's order.

    The archive itself is verified first. Raises UserError.
    """
    check_file(path, archive.file)
    wanted = {member.name: member for member in archive.members}
    try:
        for name, content in _unpack(path, archive):
            if name in wanted:
                _check_content(f"{path}, member {name}", content, wanted.pop(name))
                yield name, content
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"{path}: cannot be unpacked: {error}") from error
    if wanted:
        raise UserError(f"{path}: holds no {', '.join(wanted)}")


def _folder_below(root: Path, source: Source, archive: Archive) -> Path:
    """Where the archive, or any of its members, lies below `root`. Raises UserError where it does not."""
    for folder in (root / source.folder, root):
        if any(_exists(folder / file.name) for file in (*archive.members, archive.file)):
            return folder
    names = [member.name for member in archive.members]
    listed = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    raise UserError(
        f"dataset_root: '{root}' holds no {source.name}: expected {source.folder}/{listed} or {archive.file.name}"
    )


def _read(path: Path, expected: KnownFile) -> bytes:
    try:
        _check_size(str(path), _size(path, expected), expected)
        content = path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    _check_content(str(path), content, expected)
    return content


def _unpack(path: Path, archive: Archive) -> Iterator[tuple[str, bytes]]:
    if not archive.file.name.endswith(".tar.gz"):
        with gzip.open(path) as content:
            yield archive.members[0].name, content.read()
        return
    # Members are read into memory, never extracted: no path from inside an archive is ever written to.
    with tarfile.open(path, "r:gz") as tar:
        for entry in tar:
            stream = tar.extractfile(entry) if entry.isfile() else None
            if stream is not None:
                yield PurePosixPath(entry.name).name, stream.read()


def _check_content(label: str, content: bytes, expected: KnownFile) -> None:
    _check_size(label, len(content), expected)
    _check_digest(label, hashlib.sha256(content).hexdigest(), expected)


def _size(path: Path, expected: KnownFile) -> int:
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a file of {expected.size_bytes:,} bytes")
    return path.stat().st_size


def _check_size(label: str, size_bytes: int, expected: KnownFile) -> None:
    if size_bytes != expected.size_bytes:
        what = "truncated" if size_bytes < expected.size_bytes else "wrong"
        raise UserError(f"{label}: {what}: {size_bytes:,} bytes, expected {expected.size_bytes:,}")


def _check_digest(label: str, digest: str, expected: KnownFile) -> None:
    if digest != expected.sha256:
        raise UserError(f"{label}: corrupted: SHA-256 is {digest}, expected {expected.sha256}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read: {error.strerror or error}")


def _layout(source: Source) -> str:
    return f"{source.folder}/ or {', '.join(archive.file.name for archive in source.archives)}"
