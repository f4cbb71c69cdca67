"""The file of a trained reference: what it was made with, and a checksum.

torch's own reader takes changed bytes for numbers.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from relay.base.errors import UserError
from relay.datasets.manifest import digest
from relay.process import machine

COMPUTING = ("torch", "cuda")


def write(file: Path, trained: dict[str, Any]) -> None:
    """Write a reference, all of it or none. Raises OSError."""
    buffer = io.BytesIO()
    torch.save(trained, buffer)
    content = buffer.getvalue()
    whole = {"content": torch.frombuffer(bytearray(content), dtype=torch.uint8), "sha256": _digest(content)}
    partial = file.with_suffix(".partial")
    torch.save(whole, partial)
    partial.rename(file)


def read(file: Path) -> dict[str, Any]:
    """A reference. Raises UserError where its file is damaged: that says nothing of a strategy."""
    try:
        whole: dict[str, Any] = torch.load(file, weights_only=True)
        if "made_with" in whole:  # of a version that wrote no checksum
            return whole
        content = whole["content"].numpy().tobytes()
        if _digest(content) != whole["sha256"]:
            raise ValueError("its bytes were changed")
        trained: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
    except (OSError, EOFError, RuntimeError, UnpicklingError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise UserError(f"{file}: is damaged ({reason}); remove it, and start the same call again") from None
    return trained


def made_with(dataset: Path, device: torch.device) -> dict[str, Any]:
    """What a reference, or a verdict, is made with: versions of this process's libraries, and the dataset's digest."""
    return {"versions": machine.versions(device), "dataset": digest(dataset)}


def check_made_with(reference: Mapping[str, Any], here: Mapping[str, Any], file: Path) -> None:
    """Raise UserError where a reference was made with other libraries, or other data, than its gate has."""
    there = reference["made_with"]
    pairs = {name: (there["versions"][name], here["versions"][name]) for name in COMPUTING}
    pairs["dataset"] = (there["dataset"], here["dataset"])
    if differing := [name for name, (then, now) in pairs.items() if then != now]:
        name = differing[0]
        raise UserError(
            f"{file}: was made with {name} {pairs[name][0]}, here it is {pairs[name][1]}; "
            f"`rm -r {file.parent}` lets it be made again"
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
