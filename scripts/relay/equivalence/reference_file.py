"""The file of a trained reference, with a checksum: torch's own reader takes changed bytes for numbers."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from relay.base.errors import UserError


def write(file: Path, trained: dict[str, Any]) -> None:
    """Write a reference, all of it or none. Raises OSError."""
    content = io.BytesIO()
    torch.save(trained, content)
    held = content.getvalue()
    whole = {"content": torch.frombuffer(bytearray(held), dtype=torch.uint8), "sha256": _digest(held)}
    partial = file.with_suffix(".partial")
    torch.save(whole, partial)
    partial.rename(file)


def read(file: Path) -> dict[str, Any]:
    """A reference. Raises UserError where its file is damaged: that says nothing of a strategy."""
    try:
        found: dict[str, Any] = torch.load(file, weights_only=True)
        if "made_with" in found:  # of a version that wrote no checksum
            return found
        held = found["content"].numpy().tobytes()
        if _digest(held) != found["sha256"]:
            raise ValueError("its bytes were changed")
        inner: dict[str, Any] = torch.load(io.BytesIO(held), weights_only=True)
    except (OSError, EOFError, RuntimeError, UnpicklingError, ValueError, KeyError, TypeError, AttributeError) as error:
        told = " ".join(str(error).split())[:100] or type(error).__name__
        raise UserError(f"{file}: is damaged ({told}); remove it, and start the same call again") from None
    return inner


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
