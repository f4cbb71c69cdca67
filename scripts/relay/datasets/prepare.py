"""Preparing a dataset: arrays into a temporary folder beside the goal, the manifest last, then one rename."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relay.base.errors import UserError
from relay.datasets import generate, manifest, text
from relay.datasets.files import members_below, members_of
from relay.datasets.formats import Arrays, arrays_from
from relay.datasets.manifest import ARRAYS, MANIFEST, Manifest
from relay.datasets.request import Request
from relay.datasets.sources import SOURCES, Source

if TYPE_CHECKING:
    from relay.datasets.download import Patience

_ABANDONED_SECONDS = 24 * 3600
log = logging.getLogger(__name__)


def prepare(
    request: Request,
    output: Path,
    *,
    root: Path | None = None,
    mirror: str | None = None,
    source: Source | None = None,
    patience: Patience | None = None,
) -> Manifest:
    """Prepares a dataset into the folder `output`, unless it is there already and whole; returns its
    manifest.

    `root` is a folder with a copy in torchvision's layout; without it, the files are downloaded, from
    `mirror` in place of the source's own addresses if given. `source` replaces the known description of
    `request.name`. Two processes may prepare the same folder. Raises UserError.
    """
    output = Path(os.path.realpath(output))
    source = source or SOURCES.get(request.name)
    _check_options(request, root, mirror, source)
    with _writing(output):
        _check_output(output)
    if (present := _present(output, request)) is not None:
        log.info("%s: already prepared in %s", request.name, output)
        return present
    with _writing(output), _workspace(output) as workspace:
        prepared = workspace / "prepared"
        prepared.mkdir()
        if source is not None:
            arrays, origin = _from_source(request, source, workspace, root=root, mirror=mirror, patience=patience)
            _save(arrays, prepared)
        elif request.name == "digits":
            arrays, origin = generate.digits(request.test_count)
            _save(arrays, prepared)
        elif request.kind == "text":
            arrays, origin = text.windows(request.shape[0])
            _save(arrays, prepared)
        elif request.kind == "vectors":
            _save(generate.random_regression(request), prepared)
            origin = "generated"
        else:
            generate.write_synthetic(request, prepared)
            origin = "generated"
        made = _complete(request, prepared, origin)
        return _publish(prepared, output, made, workspace)


def _check_options(request: Request, root: Path | None, mirror: str | None, source: Source | None) -> None:
    family = request.name.partition("-")[0]
    if source is None and request.name != "digits" and family not in ("synthetic", "random", "relay"):
        allowed = ", ".join(["digits", *SOURCES, "random-…", "relay-text…", "synthetic"])
        raise UserError(f"dataset: '{request.name}' is unknown; allowed are {allowed}")
    kind = {"random": "vectors", "relay": "text"}.get(family, "images")
    if request.kind != kind:
        raise UserError(f"kind: '{request.kind}' does not fit '{request.name}'; allowed is {kind}")
    if mirror is not None and not mirror.startswith(("http://", "https://")):
        raise UserError(f"dataset_mirror: '{mirror}' must begin with http:// or https://")
    if source is None and (root or mirror):
        log.info(
            "%s: needs neither a copy nor a server; dataset_root and dataset_mirror are not used",
            request.name,
        )


def _check_output(output: Path) -> None:
    """Refuses a goal that holds anything else: it would be replaced."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output: '{output}' is a file; expected a folder")
    if output.is_dir():
        foreign = sorted({path.name for path in output.iterdir()} - {*ARRAYS, MANIFEST})
        if foreign:
            raise UserError(f"output: '{output}' holds '{foreign[0]}'; expected a new, empty or prepared folder")


def _present(output: Path, request: Request) -> Manifest | None:
    """The manifest of what lies in `output`, if that is what was asked for and undamaged."""
    try:
        present = manifest.verify(output, full=True)
    except UserError as error:
        if (output / MANIFEST).exists():
            log.warning("%s", error)
        return None
    return present if all(getattr(present, key) == value for key, value in vars(request).items()) else None


def _from_source(
    request: Request,
    source: Source,
    workspace: Path,
    *,
    root: Path | None,
    mirror: str | None,
    patience: Patience | None,
) -> tuple[Arrays, str]:
    if root is not None:
        root = root.absolute()
        return arrays_from(source.format, dict(members_below(root, source, request.name))), str(root)
    from relay.datasets.download import download  # its packages are not needed to read a copy

    downloads = workspace / "downloads"
    downloads.mkdir()
    mirrors = (mirror,) if mirror else source.mirrors
    members: dict[str, bytes] = {}
    for archive in source.archives:
        path, url = download(archive.file, mirrors, downloads, patience)
        members.update(members_of(path, archive))
        path.unlink()
    return arrays_from(source.format, members), url.rpartition("/")[0] + "/"


def _save(arrays: Arrays, directory: Path) -> None:
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)


def _complete(request: Request, directory: Path, origin: str) -> Manifest:
    """Compares the arrays with what was asked for, waits until they are on the disk, and writes the
    manifest.
    """
    for split, count in zip(manifest.SPLITS, (request.train_count, request.test_count), strict=True):
        inputs, targets = manifest.load_split(directory, split)
        if inputs.shape != (count, *request.shape):
            expected = [count, *request.shape]
            raise UserError(f"{request.name}: {split} inputs are {list(inputs.shape)}, expected {expected}")
        if request.classes is not None and not 0 <= targets.min() <= targets.max() < request.classes:
            found = f"{targets.min()} … {targets.max()}"
            raise UserError(f"{request.name}: {split} targets are {found}, expected 0 … {request.classes - 1}")
    for name in ARRAYS:
        with (directory / name).open("rb") as stream:
            os.fsync(stream.fileno())
    mean = std = None
    if request.kind == "images":
        mean, std = manifest.channel_statistics(manifest.load_split(directory, "train")[0])
    files = manifest.describe(directory)
    made = Manifest(**vars(request), mean=mean, std=std, source=origin, files=files)
    manifest.write(directory, made)
    return made


def _publish(prepared: Path, output: Path, made: Manifest, workspace: Path) -> Manifest:
    """Renames the finished folder to its place. Where another process was first with the same arrays,
    theirs stays.
    """
    for attempt in range(5):
        try:
            prepared.rename(output)
            return made
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            present = manifest.verify(output, full=True)
        except UserError:
            present = None
        if present is not None and vars(present) | {"source": ""} == vars(made) | {"source": ""}:
            return present
        _check_output(output)
        output.rename(workspace / f"replaced-{attempt}")
    raise UserError(f"output: '{output}' is replaced by other processes again and again; let one prepare it")


@contextmanager
def _workspace(output: Path) -> Iterator[Path]:
    """A temporary folder on the goal's own file system, removed in any case but a kill -9; those go after a
    day.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    for old in output.parent.glob(f".{output.name}.*.partial"):
        if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    workspace = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    try:
        yield workspace
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


@contextmanager
def _writing(output: Path) -> Iterator[None]:
    """A disk that is full, read-only or not permitted is one line that names the goal."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise UserError(f"output: '{output}' cannot be written: {error.strerror or error}{where}") from error
