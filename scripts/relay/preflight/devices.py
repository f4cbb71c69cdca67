"""What torch tells of itself and of the GPUs that this process sees. Untested on GPUs: see docs/preflight.md."""

import os
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from relay.datasets import vision
from relay.process.gpus import nccl
from relay.process.machine import set_precision, tf32
from relay.process.ranks import backends
from relay.spec.versions import installed


def collect(device: str, torchvision_too: bool) -> dict[str, Any]:
    """Versions and builds, the visible GPUs where the run is to use them, and whether torchvision fits this torch."""
    wanted = device == "cuda"
    set_precision("fp32")  # as runs do: torch's own default has TF32 on for convolutions
    return {
        "torch": {
            "version": torch.__version__,
            "folder": str(Path(torch.__file__).parent),
            "cuda": torch.version.cuda,
            "hip": getattr(torch.version, "hip", None),
            "nccl": nccl() if dist.is_nccl_available() else None,
            "backends": backends(),
            "threads": torch.get_num_threads(),
            "tf32": tf32(),
        },
        "cuda": gpus() if wanted else None,
        "torchvision": torchvision() if torchvision_too else None,
        "bound_affinity": sorted(os.sched_getaffinity(0)),
    }


def gpus() -> dict[str, Any]:
    """The visible GPUs, and why there are none: torch tells a driver that is too old only in a warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    messages = [" ".join(str(warning.message).split()) for warning in caught]
    seen: dict[str, Any] = {"available": available, "messages": messages, "architectures": [], "devices": []}
    if not available:
        return seen
    seen["architectures"] = torch.cuda.get_arch_list()
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        seen["devices"].append(
            {
                "name": properties.name,
                "capability": [properties.major, properties.minor],
                "uuid": str(getattr(properties, "uuid", "")) or None,  # since torch 2.2
                "memory_mb": properties.total_memory // 2**20,
            }
        )
    return seen


def kernel(device: torch.device) -> str | None:
    """Run one small kernel on the device; what went wrong, or None."""
    try:
        total = torch.ones(8, device=device).sum().item()
    except RuntimeError as error:
        return " ".join(str(error).split())[:500]
    return None if total == 8 else f"eight ones add up to {total}"


def torchvision() -> dict[str, Any]:
    """Whether torchvision can be imported: by itself (`error` is None), or else as this project does it (`mended`)."""
    package: dict[str, Any] = {"version": installed("torchvision"), "error": None, "mended": False}
    if package["version"] is None:
        return package
    try:
        import_module("torchvision")
    except Exception as error:  # whatever a broken package raises
        package["error"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
        vision.importable()
        with suppress(Exception):
            import_module("torchvision")
            package["mended"] = True
    return package
