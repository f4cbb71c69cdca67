"""Every known trap as a check: pure functions from the facts of a job to findings, each with its remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from relay.preflight.findings import REGISTER, Facts, Finding, Registered, warn

# Importing the modules with checks, `checks_*.py` beside this one, fills the register.
for _path in sorted(Path(__file__).parent.glob("checks_*.py")):
    import_module(f"{__package__}.{_path.stem}")

# What torch, NCCL and gloo say when something ends the processes: a part of it, the check's name, and the remedy.
EXPLANATIONS = (
    (r"Duplicate GPU detected", "one GPU for each rank", "take backend gloo, or ask for a GPU for each process"),
    (
        r"invalid device ordinal",
        "visible GPUs",
        "fewer GPUs are visible than the program counts on: ask for --gpus-per-node, bound to no task",
    ),
    (
        r"no kernel image is available",
        "GPU architecture",
        "install a build of torch whose torch.cuda.get_arch_list() has this GPU",
    ),
    (r"driver on your system is too old", "driver", "install a build of torch for an older CUDA"),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "port",
        "another program has the port: on one node use torchrun --standalone, on several a port made from the job's id",
    ),
    (
        r"Unable to find address for|Unable to resolve hostname|find interface|no socket interface found",
        "network interface",
        "set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME (`network_interface` in the site's file) to one that is there",
    ),
    (
        r"operator torchvision::\w+ does not exist",
        "torchvision",
        "torchvision and torch do not fit: install both from one index",
    ),
    (r"No module named 'torch'", "environment", "the interpreter has no torch: see `environment` in the site's file"),
    (
        r"error while loading shared libraries|cannot open shared object file",
        "environment",
        "a library is missing: load the modules that the environment was built with (`modules` in the site's file)",
    ),
    (r"CUDA out of memory", "GPU memory", "another process holds the GPU's memory: see `nvidia-smi` on that node"),
)


def check_all(facts: Mapping[str, Any]) -> list[Finding]:
    """What every check that applies finds, the worst first; for partial facts only what these can tell."""
    known = Facts(facts)
    if not known.ranks:
        return []
    found = [finding for registered in REGISTER if (finding := _judged(registered, known))]
    return sorted(found, key=lambda finding: (finding.ok, ("stop", "warn", "note").index(finding.severity)))


def prevent_joining(facts: Mapping[str, Any]) -> list[Finding]:
    """What would keep a rank with these facts waiting for the others in vain."""
    known = Facts(facts)
    found = [_judged(registered, known) for registered in REGISTER if registered.prevents_joining]
    return [finding for finding in found if finding and finding.severity == "stop"]


def explain(error: str) -> Finding | None:
    """A process's error as a finding with its remedy; None for an error that is not known."""
    for pattern, name, remedy in EXPLANATIONS:
        if re.search(pattern, error):
            return Finding(name, False, "stop", error, remedy)
    return None


def _judged(registered: Registered, facts: Facts) -> Finding | None:
    try:
        outcome = registered.function(facts)
    except Exception as error:  # facts that nobody has met yet must not keep anybody from training
        outcome = warn(f"the check failed itself: {type(error).__name__}: {error}", "please report it with the facts")
    if outcome is None:
        return None
    return Finding(registered.name, outcome.ok, outcome.severity, outcome.found, outcome.remedy)
