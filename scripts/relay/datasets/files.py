"""Reading files whose content is known: nothing is parsed before size and checksums proved right."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from relay.base.errors import UserError
from relay.datasets.sources import Archive, KnownFile, Source

CHUNK_BYTES = 1 << 20


def check_file(path: Path, expected: KnownFile) -> None:
    """Raises UserError, naming file, finding and expectation, unless `path` is exactly the expected file."""
    try:
        _check_size(path, expected)
        with path.open("rb") as stream:
            _check_digests(str(path), stream, expected)
    except OSError as error:
        raise _unreadable(path, error) from error


def members_below(root: Path, source: Source, dataset: str) -> Iterator[tuple[str, bytes]]:
    """Name and verified content of each file of the source, taken from a folder in torchvision's layout.

    The files may lie extracted or as their archives, in `source.folder` below `root` or in `root` itself.
    Raises UserError for anything missing, unreadable, truncated or corrupted.
    """
    if not _exists(root):
        raise UserError(f"dataset_root: '{root}' does not exist; expected a folder that holds {_layout(source)}")
    if not root.is_dir():
        raise UserError(f"dataset_root: '{root}' is a file; expected a folder that holds {_layout(source)}")
    for archive in source.archives:
        yield from _archive_below(root, source, archive, dataset)


def members_of(path: Path, archive: Archive) -> Iterator[tuple[str, bytes]]:
    """Name and verified content of the archive's members, in the archive's order.

    The archive itself is verified first. Raises UserError.
    """
    check_file(path, archive.file)
    wanted = {member.name: member for member in archive.members}
    try:
        for name, content in _unpack(path, archive):
            if name in wanted:
                member = wanted.pop(name)
                _check_content(f"{path}, member {name}", content, member)
                yield name, content
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise UserError(f"{path}: cannot be unpacked: {error}") from error
    if wanted:
        raise UserError(f"{path}: holds no {', '.join(wanted)}")


def _archive_below(root: Path, source: Source, archive: Archive, dataset: str) -> Iterator[tuple[str, bytes]]:
    folders = (root / source.folder, root)
    for folder in folders:
        present = [member for member in archive.members if _exists(folder / member.name)]
        if present:
            for member in archive.members:
                yield member.name, _read_member(folder / member.name, member)
            return
        if _exists(folder / archive.file.name):
            yield from members_of(folder / archive.file.name, archive)
            return
    names = [member.name for member in archive.members]
    listed = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    raise UserError(
        f"dataset_root: '{root}' holds no {dataset}: expected {source.folder}/{listed} or {archive.file.name}"
    )


def _read_member(path: Path, expected: KnownFile) -> bytes:
    try:
        _check_size(path, expected)
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
    if len(content) != expected.size_bytes:
        raise _wrong_size(label, len(content), expected)
    _check_digests(label, io.BytesIO(content), expected)


def _check_size(path: Path, expected: KnownFile) -> None:
    if path.is_dir():
        raise UserError(f"{path}: is a folder, expected a file of {expected.size_bytes:,} bytes")
    size_bytes = path.stat().st_size
    if size_bytes != expected.size_bytes:
        raise _wrong_size(str(path), size_bytes, expected)


def _check_digests(label: str, stream: BinaryIO, expected: KnownFile) -> None:
    md5, sha256 = hashlib.md5(usedforsecurity=False), hashlib.sha256()
    while chunk := stream.read(CHUNK_BYTES):
        md5.update(chunk)
        sha256.update(chunk)
    if md5.hexdigest() != expected.md5:
        raise UserError(f"{label}: corrupted: MD5 is {md5.hexdigest()}, expected {expected.md5}")
    if sha256.hexdigest() != expected.sha256:
        raise UserError(f"{label}: corrupted: SHA-256 is {sha256.hexdigest()}, expected {expected.sha256}")


def _wrong_size(label: str, found_bytes: int, expected: KnownFile) -> UserError:
    what = "truncated" if found_bytes < expected.size_bytes else "wrong"
    return UserError(f"{label}: {what}: {found_bytes:,} bytes, expected {expected.size_bytes:,}")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"{path}: cannot be read: {error.strerror or error}")


def _layout(source: Source) -> str:
    return f"{source.folder}/ or {', '.join(archive.file.name for archive in source.archives)}"
