"""What a command runs on, to be recorded with its results. Needs no torch."""

from __future__ import annotations

import sys
from typing import Any

from relay.process import gpus, system
from relay.script.command import Here
from relay.spec.run import Training
from relay.spec.versions import installed

# The versions that are recorded, of what a training may use.
LIBRARIES = ("torch", "torchvision", "numpy", "lightning", "transformers", "deepspeed", "horovod")


def facts(run: Training, here: Here) -> dict[str, Any]:
    """What the command runs on, without importing torch."""
    libraries = {name: version for name in LIBRARIES if (version := installed(name))}
    names = sorted({*gpus.visible().values()}) if run.shape.device == "cuda" else []
    return {
        **system.facts(),
        "device_name": " and ".join(names) or ("GPU" if run.shape.device == "cuda" else system.processor()),
        "threads": run.shape.threads * (1 if here.each else run.shape.processes_per_node),
        "versions": {"python": sys.version.split()[0], "driver": system.driver(), **libraries},
    }
