"""What a command runs on, to be recorded with its results. Needs no torch."""

from __future__ import annotations

import socket
import sys
from contextlib import suppress
from importlib import metadata
from typing import Any

from relay.process import cpus, gpus, system
from relay.script.command import Here
from relay.spec.run import Training

# The versions that are recorded, of what a training may use.
LIBRARIES = ("torch", "torchvision", "numpy", "lightning", "transformers", "deepspeed", "horovod")


def facts(run: Training, here: Here) -> dict[str, Any]:
    """What the command runs on, without importing torch."""
    shown = gpus.visible() if run.shape.device == "cuda" else []
    names = sorted({*gpus.Gpus(shown).names}) if shown else []
    return {
        "host": socket.gethostname(),
        "device_name": " and ".join(names) or ("GPU" if run.shape.device == "cuda" else system.processor()),
        "cpus": len(cpus.granted()),
        "threads": run.shape.threads * (1 if here.each else run.shape.processes_per_node),
        "virtual": system.virtual(),
        "cpu_quota": system.cpu_quota(),
        "versions": {"python": sys.version.split()[0], "driver": system.driver(), **_libraries()},
    }


def _libraries() -> dict[str, str | None]:
    """The versions of what a training may use, as far as they are installed."""
    found: dict[str, str | None] = {}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
