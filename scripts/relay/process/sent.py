"""The bytes that this process has sent over TCP, from the kernel's counters, so that all frameworks are counted."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_TCP_INFO_BYTES = 232
_BYTES_SENT_OFFSET = 200  # tcpi_bytes_sent in struct tcp_info of linux/tcp.h, since Linux 4.19


def by_socket() -> dict[str, int]:
    """The bytes sent so far over each open TCP socket of this process; empty where the kernel has no counters."""
    sent = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            name = str(link.readlink())
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(link.name))) as connection:
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            (sent[name],) = struct.unpack_from("Q", info, _BYTES_SENT_OFFSET)
        except (OSError, struct.error):
            continue  # the descriptor was closed in the meantime, or is not a TCP socket
    return sent


def since(before: dict[str, int]) -> int:
    """The bytes sent since `before`, an earlier result of `by_socket`, over old and new sockets."""
    return sum(count - before.get(name, 0) for name, count in by_socket().items())
