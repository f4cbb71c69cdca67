"""Bytes that this process has really sent, from the kernel's TCP counters: whatever framework sent them."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_TCP_INFO_BYTES = 232
_BYTES_SENT_OFFSET = 200  # tcpi_bytes_sent in struct tcp_info of linux/tcp.h, since Linux 4.19


def by_socket() -> dict[str, int]:
    """Bytes sent over each of this process's TCP sockets so far; empty where the kernel does not tell."""
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
            continue  # closed meanwhile, or no TCP socket
    return sent


def since(before: dict[str, int]) -> int:
    """Bytes sent since that `by_socket()`, over sockets old and new."""
    return sum(count - before.get(name, 0) for name, count in by_socket().items())
