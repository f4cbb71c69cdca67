"""The workers of a script's loader: shielded from a job's signals, bounded in their silence, and ended."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from .signals import SIGNALS
from .telling import ChainError

LONGEST_FOLDER = 107 - len("/pymp-12345678/listener-12345678")  # sockets' names have 107 bytes at most
SILENT_SECONDS = 600  # without a batch, where the user gave the loader no `timeout`
_LET_GO_SECONDS = 1.0


def prepare(loaders: Iterable[Any]) -> None:
    """Shield the workers of these loaders from a job's signals; bound the wait for a batch.

    Raises ChainError where they could not make their sockets: the training would wait for ever.
    """
    folder = tempfile.gettempdir()
    for each in loaders:
        if not isinstance(each, DataLoader) or not each.num_workers:
            continue
        if len(os.fsencode(folder)) > LONGEST_FOLDER:
            raise ChainError(
                f"TMPDIR={folder}: {len(os.fsencode(folder))} characters are too many for data workers' sockets; "
                f"allowed: at most {LONGEST_FOLDER}, such as /tmp"
            )
        each.timeout = each.timeout or SILENT_SECONDS
        if not isinstance(each.worker_init_fn, _Shielded):
            each.worker_init_fn = _Shielded(each.worker_init_fn)
            atexit.unregister(_let_go)
            atexit.register(_let_go)


def heard(batches: Iterable[Any]) -> Iterator[Any]:
    """The same batches. Raises ChainError in place of torch's error where the workers say nothing for too long."""
    try:
        yield from batches
    except RuntimeError as error:
        if "DataLoader timed out" not in str(error):
            raise
        raise ChainError(
            f"{error}: the data workers say nothing; what they printed is above. Where a batch may take longer, give "
            "the loader timeout=SECONDS"
        ) from None


@dataclass
class _Shielded:
    """What a worker begins with: what reaches every process of a job ends none, for the last step still needs it."""

    then: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if self.then:
            self.then(worker)


def _let_go() -> None:
    """At the end: kill workers that are stuck. multiprocessing would wait for ever, as they ignore its SIGTERM."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's own handler makes an error of a worker's death
    left = [each for each in multiprocessing.active_children() if each.daemon]
    for each in left:
        each.terminate()
    for each in left:
        each.join(_LET_GO_SECONDS)
        each.kill()
