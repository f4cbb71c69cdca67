"""One process at a time in a run's directory."""

from __future__ import annotations

import errno
import fcntl
import sys
import time
from pathlib import Path
from typing import TextIO

from relay.base.errors import Busy

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
WAIT_SECONDS = 60.0  # what an interrupted trainer may need to save and end


def exclusive(work: Path) -> TextIO:
    """Hold the directory until the returned file is closed, or the process ends.

    Raises Busy where another process does not let go of it within a minute. A file system without locks gets a warning.
    """
    stream = (work / "lock").open("w")
    waited_until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return stream
        except BlockingIOError:
            if time.monotonic() > waited_until:
                stream.close()
                raise Busy(f"{work}: another process trains this run; wait for its end or end it") from None
            time.sleep(0.2)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            print(f"warning: {work}: this file system has no locks: train each run once at a time", file=sys.stderr)
            return stream
