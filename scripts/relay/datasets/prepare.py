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

from relay.base.errors import UserError
from relay.base.files import sync_file
from relay.datasets import catalogue, kinds, manifest, request
from relay.datasets.arrays import FILES, SPLITS, Arrays, save
from relay.datasets.files import members_below, members_of
from relay.datasets.manifest import MANIFEST, Manifest
from relay.datasets.sources import Source
from relay.spec.dataset import DatasetSpec

if TYPE_CHECKING:
    from relay.datasets.download import Patience
    from relay.datasets.kind import Maker

_ABANDONED_SECONDS = 24 * 3600
log = logging.getLogger(__name__)


def prepare(
    spec: DatasetSpec,
    output: Path,
    *,
    root: Path | None = None,
    mirror: str | None = None,
    source: Source | None = None,
    patience: Patience | None = None,
) -> Manifest:
    """Prepares a dataset into the folder `output`, unless it is there already and whole; returns its manifest.

    `root` is a folder with a copy in torchvision's layout; without it, the files are downloaded, from `mirror` in place
    of the source's own addresses if given. `source` replaces the known description of `spec.name`. Two processes may
    prepare the same folder. Raises UserError.
    """
    output = Path(os.path.realpath(output))
    request.check(spec)
    origin = source or _origin(spec)
    _check_options(spec, origin, root, mirror)
    with _writing(output):
        _check_output(output)
    if (present := _present(output, spec)) is not None:
        log.info("%s: already prepared in %s", spec.name, output)
        return present
    with _writing(output), _workspace(output) as workspace:
        prepared = workspace / "prepared"
        prepared.mkdir()
        if isinstance(origin, Source):
            arrays, where_from = _from_source(spec, origin, workspace, root=root, mirror=mirror, patience=patience)
            save(arrays, prepared)
        else:
            where_from = origin(spec, prepared)
        made = _complete(spec, prepared, where_from)
        return _publish(prepared, output, made, workspace)


def _origin(spec: DatasetSpec) -> Source | Maker:
    """Where the dataset comes from. Raises UserError for an unknown name, and for one that is of another kind."""
    known = catalogue.entry(spec.name)
    if spec.kind != known.spec.kind:
        raise UserError(f"kind: '{spec.kind}' does not fit '{spec.name}'; allowed is {known.spec.kind}")
    return known.origin


def _check_options(spec: DatasetSpec, origin: Source | Maker, root: Path | None, mirror: str | None) -> None:
    if mirror is not None and not mirror.startswith(("http://", "https://", "file://")):
        raise UserError(f"dataset_mirror: '{mirror}' must begin with http://, https:// or file://")
    if not isinstance(origin, Source) and (root or mirror):
        log.info("%s: needs neither a copy nor a server; dataset_root and dataset_mirror are not used", spec.name)


def _check_output(output: Path) -> None:
    """Refuses a goal that holds anything else: it would be replaced."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output: '{output}' is a file; expected a folder")
    if output.is_dir():
        foreign = sorted({path.name for path in output.iterdir()} - {*FILES, MANIFEST})
        if foreign:
            raise UserError(f"output: '{output}' holds '{foreign[0]}'; expected a new, empty or prepared folder")


def _present(output: Path, spec: DatasetSpec) -> Manifest | None:
    """The manifest of what lies in `output`, if that is what was asked for and undamaged."""
    try:
        present = manifest.verify(output, full=True)
    except UserError as error:
        if (output / MANIFEST).exists():
            log.warning("%s", error)
        return None
    return present if all(getattr(present, key) == value for key, value in vars(spec).items()) else None


def _from_source(
    spec: DatasetSpec,
    source: Source,
    workspace: Path,
    *,
    root: Path | None,
    mirror: str | None,
    patience: Patience | None,
) -> tuple[Arrays, str]:
    if root is not None:
        root = root.absolute()
        return source.read(dict(members_below(root, source, spec.name))), str(root)
    from relay.datasets.download import download  # its packages are not needed to read a copy

    downloads = workspace / "downloads"
    downloads.mkdir()
    mirrors = (mirror,) if mirror else source.mirrors
    members: dict[str, bytes] = {}
    for archive in source.archives:
        path, url = download(archive.file, mirrors, downloads, patience)
        members.update(members_of(path, archive))
        path.unlink()
    return source.read(members), url.rpartition("/")[0] + "/"


def _complete(spec: DatasetSpec, directory: Path, where_from: str) -> Manifest:
    """Compares the arrays with what was asked for, waits until they are on the disk, and writes the manifest."""
    kind = kinds.load(spec.kind)
    for split, count in zip(SPLITS, (spec.train_count, spec.test_count), strict=True):
        inputs, targets = manifest.load_split(directory, split)
        if inputs.shape != (count, *spec.shape):
            expected = [count, *spec.shape]
            raise UserError(f"{spec.name}: {split} inputs are {list(inputs.shape)}, expected {expected}")
        for part, array, dtype in (("inputs", inputs, kind.inputs), ("targets", targets, kind.targets)):
            if array.dtype != dtype:
                raise UserError(f"{spec.name}: {split} {part} are {array.dtype}, expected {dtype} ({spec.kind})")
        if spec.classes is not None and not 0 <= targets.min() <= targets.max() < spec.classes:
            found = f"{targets.min()} … {targets.max()}"
            raise UserError(f"{spec.name}: {split} targets are {found}, expected 0 … {spec.classes - 1}")
    for name in FILES:
        sync_file(directory / name)
    mean, std = kind.statistics(manifest.load_split(directory, "train")[0])
    files = manifest.describe(directory)
    made = Manifest(**vars(spec), mean=mean, std=std, source=where_from, files=files)
    manifest.write(directory, made)
    return made


def _publish(prepared: Path, output: Path, made: Manifest, workspace: Path) -> Manifest:
    """Renames the finished folder to its place. Where another process was first with the same arrays, theirs stays."""
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
    """A temporary folder on the goal's own file system. It is always removed; after a kill -9, a day later."""
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
