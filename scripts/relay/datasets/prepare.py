"""Preparing data: a task's `prepare` into a temporary folder beside the goal, the manifest last, then one rename."""

import errno
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line
from relay.chain.files import sync
from relay.datasets import manifest, verified
from relay.datasets.manifest import MANIFEST, Manifest
from relay.spec.tasks import DatasetSpec

_ABANDONED_SECONDS = 24 * 3600
log = logging.getLogger(__name__)


def prepare(spec: DatasetSpec, make: Callable[[Path], None], output: Path) -> Manifest:
    """Prepares data into the folder `output`, unless they are there already and whole; returns their manifest.

    `make`, a task's `prepare`, fills an empty folder. Nothing is used of what it has made where it fails. Two processes
    may prepare the same folder. Raises UserError.
    """
    output = Path(os.path.realpath(output))
    with errors_in_one_line(output, "cannot be written"):
        _check_output(output)
    if (present := _present(output, spec)) is not None:
        log.info("%s: already prepared in %s", spec.name, output)
        return present
    with errors_in_one_line(output, f"cannot be written, for {output}"), _workspace(output) as workspace:
        prepared = workspace / "prepared"
        prepared.mkdir()
        make(prepared)
        for path in prepared.rglob("*"):
            if path.is_file():
                sync(path)
        new = Manifest(name=spec.name, version=spec.version, files=manifest.describe(prepared))
        manifest.write(prepared, new)
        return _publish(prepared, output, new, workspace)


def _check_output(output: Path) -> None:
    """Refuses a goal that holds anything else: it would be replaced."""
    if output.exists() and not output.is_dir():
        raise UserError(f"output: '{output}' is a file; expected a folder")
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).exists():
        raise UserError(f"output: '{output}' holds other files; expected a new, empty or prepared folder")


def _present(output: Path, spec: DatasetSpec) -> Manifest | None:
    """The manifest of what lies in `output`, if that is what was asked for and undamaged."""
    try:
        present = verified.check(output)
    except UserError as error:
        if (output / MANIFEST).exists():
            log.warning("%s", error)
        return None
    return present if (present.name, present.version) == (spec.name, spec.version) else None


def _publish(prepared: Path, output: Path, new: Manifest, workspace: Path) -> Manifest:
    """Renames the finished folder to its place. Where another process was first with the same arrays, theirs stays."""
    for attempt in range(5):
        try:
            prepared.rename(output)
            return new
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            present = verified.check(output)
        except UserError:
            present = None
        if present == new:
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
