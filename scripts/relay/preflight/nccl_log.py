"""What NCCL says of itself with NCCL_DEBUG=INFO: its version, its network, and by which way each channel goes."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Any


def ask(path: Path) -> None:
    """Let NCCL write its log there; to be called before its first use in this process."""
    os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "NCCL_DEBUG_FILE": str(path)}


def read(path: Path) -> dict[str, Any] | None:
    """What the log tells; None where NCCL wrote none.

    `version`, `network` (the last one that NCCL names), `via` (channels by way: NET/IB, P2P, SHM, …), `warnings`.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    version = re.search(r"NCCL version (\S+)", text)
    networks = re.findall(r"Using network (.+)", text)
    ways = re.findall(r"Channel \S+ ?: .* via (NET/\w+|[A-Za-z0-9]+)", text)
    warnings = re.findall(r"NCCL WARN (.+)", text)
    return {
        "version": version[1] if version else None,
        "network": networks[-1].strip() if networks else None,
        "via": dict(Counter(ways)),
        "warnings": warnings[:5],
    }
