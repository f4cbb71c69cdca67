"""What a reference, or a verdict, was made with: versions of libraries, and the content of the dataset."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from relay.base.errors import UserError
from relay.datasets.manifest import digest
from relay.process import machine

COMPUTING = ("torch", "cuda")


def made_with(dataset: Path, device: torch.device) -> dict[str, Any]:
    """The versions of this process's libraries, and a digest of the dataset."""
    return {"versions": machine.versions(device), "dataset": digest(dataset)}


def check_reference(reference: Mapping[str, Any], here: Mapping[str, Any], file: Path) -> None:
    """Raise UserError where a reference was made with other libraries, or other data, than its gate has."""
    told = reference["made_with"]
    pairs = {name: (told["versions"][name], here["versions"][name]) for name in COMPUTING}
    pairs["dataset"] = (told["dataset"], here["dataset"])
    if differing := [name for name, (then, now) in pairs.items() if then != now]:
        name = differing[0]
        raise UserError(
            f"{file}: was made with {name} {pairs[name][0]}, here it is {pairs[name][1]}; "
            f"`rm -r {file.parent}` lets it be made again"
        )
