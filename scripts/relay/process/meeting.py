"""Where the processes of one node find each other: in a file of their user's own. A port would be open to every user.

Whoever can write to a store of torch's can make processes read pickles, and run code in them.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

VARIABLE = "TORCH_RELAY_MEETING"
MEMORY = Path("/dev/shm")  # the node's alone, and it has locks, which a shared TMPDIR may lack
LOOPBACK = "lo" if sys.platform == "linux" else "lo0"  # the interface
# Of torchrun on one node; the endpoint is a file. Otherwise it has a port of its own, with pickles in it.
TORCHRUN = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file", "--local-addr=127.0.0.1")


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that only this user can enter, as long as processes run. The environment tells it to them."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="relay-meeting-", dir=where, ignore_cleanup_errors=True) as folder:
        os.environ[VARIABLE] = folder
        yield Path(folder)


def horovod_listens_at(address: str) -> None:
    """Have the server by which Horovod's processes meet listen at an address of this node alone, not at all of them."""
    from horovod.runner.http.http_server import HTTPServer, RendezvousHTTPServer

    def bind(self: Any) -> None:
        self.server_address = (address, self.server_address[1])
        HTTPServer.server_bind(self)

    RendezvousHTTPServer.server_bind = bind
