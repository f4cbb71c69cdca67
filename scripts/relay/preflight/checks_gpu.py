"""Checks of GPUs, driver and torch's CUDA. Tested on facts written by hand: the GPUs that they ran on had no faults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from relay.environments.locks import base
from relay.preflight.findings import Facts, Finding, check, fine, listed, note, stop, warn, who
from relay.process.one_gpu import SHARED
from relay.spec.cuda import OLDEST_DRIVER, of_modules
from relay.spec.versions import release

INSTALL = "install a CUDA build of torch for this stack (`torch:` of the site's environment, docs/environments.md)"


def _devices(rank: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return rank["cuda"]["devices"] if rank.get("cuda") else []


def _own(rank: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The GPU that a rank uses; None before it has one."""
    index, devices = rank.get("device_index"), _devices(rank)
    return devices[index] if index is not None and index < len(devices) else None


def _on_gpus(facts: Facts) -> list[Mapping[str, Any]]:
    """The ranks that have told of torch, where the run is to use GPUs."""
    return [rank for rank in facts.ranks if "torch" in rank] if facts.run["device"] == "cuda" else []


def _shared(rank: Mapping[str, Any]) -> bool:
    """Whether NCCL is told that ranks share a GPU."""
    return rank["environment"].get(SHARED) == "1"


@check("torch's build", prevents_joining=True)
def build(facts: Facts) -> Finding | None:
    """A CPU build where GPUs are to be used; GPUs that a run on CPUs leaves alone."""
    for rank in _on_gpus(facts):
        torch = rank["torch"]
        if torch["cuda"] is None and torch["hip"] is None:
            return stop(f"device is cuda, but torch {torch['version']} on {rank['node']} is a build for CPUs", INSTALL)
    if facts.run["device"] == "cpu":
        seen = [rank for rank in facts.ranks if rank["driver"]["gpus"]]
        if not seen:
            return None
        return note(
            f"{len(seen[0]['driver']['gpus'])} GPUs are on {seen[0]['node']}, device is cpu",
            "set `device: cuda` to use them, or a partition without GPUs",
        )
    return fine("for GPUs") if _on_gpus(facts) else None


@check("driver", prevents_joining=True)
def driver(facts: Facts) -> Finding | None:
    """No driver, or one that is too old for torch's CUDA, unless torch itself can use it."""
    works = ""
    for rank in _on_gpus(facts):
        version, cuda = rank["driver"]["version"], rank["torch"]["cuda"]
        if cuda is None:
            continue
        if version is None:
            if rank["cuda"]["available"]:
                continue
            return stop(
                f"no NVIDIA driver is loaded on {rank['node']}",
                "ask for a partition with GPUs (config/sites), or tell your site: the node may be broken",
            )
        major, least = int(version.split(".")[0]), OLDEST_DRIVER.get(int(cuda.split(".")[0]))
        if least and major < least:
            fitting = max((each for each, lowest in OLDEST_DRIVER.items() if lowest <= major), default=None)
            build = f"for CUDA {fitting}" if fitting else "for an older CUDA"
            old = f"driver {version} on {rank['node']} is too old for torch's CUDA {cuda}, which needs {least} or newer"
            if rank["cuda"]["available"]:
                works = f"{old}, yet torch can use its GPUs: forward compatibility (cuda-compat, a container)"
                continue
            return stop(
                old,
                f"install a build of torch {build} (`torch:` of the site's environment), or ask for a newer driver",
            )
    if works:
        return note(works, "where CUDA fails later: a newer driver, or a build of torch for an older CUDA")
    versions = {rank["driver"]["version"] or "one whose version is not told" for rank in _on_gpus(facts)}
    return fine(listed(sorted(versions))) if versions else None


@check("CUDA", prevents_joining=True)
def cuda(facts: Facts) -> Finding | None:
    """torch cannot use any GPU, for a reason that neither its build nor the driver's version is."""
    for rank in _on_gpus(facts):
        if rank["torch"]["cuda"] is None or rank["cuda"]["available"]:
            continue
        reason = f": {rank['cuda']['messages'][0]}" if rank["cuda"]["messages"] else ""
        visible = rank["environment"].get("CUDA_VISIBLE_DEVICES", "not set")
        return stop(
            f"torch sees no GPU from {who(rank)} (CUDA_VISIBLE_DEVICES {visible or 'empty'}){reason}",
            "ask for GPUs with --gpus-per-node; an empty CUDA_VISIBLE_DEVICES means that this step was given none",
        )
    return fine("torch sees GPUs") if _on_gpus(facts) else None


@check("CUDA module")
def cuda_module(facts: Facts) -> Finding | None:
    """A loaded module of another CUDA than torch was built with."""
    compiles = base(facts.run["stack"]) == "deepspeed" or facts.run.get("compile")
    for rank in _on_gpus(facts):
        own = rank["torch"]["cuda"]
        loaded = of_modules(rank["environment"].get("LOADEDMODULES", "").split(":"))
        if own and loaded and release(loaded)[:2] != release(own)[:2]:
            return (warn if compiles else note)(
                f"the module of CUDA {loaded} is loaded, torch {rank['torch']['version']} was built with CUDA {own}",
                f"what is compiled for this torch needs its own version: name cuda/{own} in the site's file "
                "(`modules`, `stack_modules`), or none",
            )
    return None


@check("GPU architecture", prevents_joining=True)
def architecture(facts: Facts) -> Finding | None:
    """A GPU for which torch has no machine code, nor intermediate code that the driver could translate."""
    slow = ""
    for rank in _on_gpus(facts):
        built_for = rank["cuda"]["architectures"]
        for device in _devices(rank):
            major, minor = device["capability"]
            if not built_for or any(_runs(name, major, minor) for name in built_for):
                continue
            if any(_translated(name, major, minor) for name in built_for):
                slow = f"{device['name']} (sm_{major}{minor}) runs by translation: its first start is slow"
                continue
            return stop(
                f"{device['name']} is sm_{major}{minor}, torch {rank['torch']['version']} has {listed(built_for, 12)}",
                f"install a build of torch that lists sm_{major}{minor} (new GPUs need newer builds: an H100, sm_90, "
                "torch 2.3 on the Alliance's clusters; old GPUs need older ones)",
            )
    if slow:
        return note(slow, "a build of torch that lists this architecture starts at once")
    return fine("all in torch's list") if any(map(_devices, _on_gpus(facts))) else None


def _runs(name: str, major: int, minor: int) -> bool:
    """Whether machine code `sm_90` runs there: within its major version, on the same minor one or a later."""
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", name)
    if not match:
        return False
    exact = (int(match[1]), int(match[2])) == (major, minor)
    return exact or (not match[3] and int(match[1]) == major and int(match[2]) <= minor)


def _translated(name: str, major: int, minor: int) -> bool:
    """Whether intermediate code `compute_80` can be translated for it."""
    match = re.fullmatch(r"compute_(\d+)(\d)", name)
    return match is not None and (int(match[1]), int(match[2])) <= (major, minor)


@check("GPUs", prevents_joining=True)
def count(facts: Facts) -> Finding | None:
    """Fewer visible GPUs than the run declares."""
    for rank in _on_gpus(facts):
        seen = len(_devices(rank))
        needed = facts.run["devices_per_node"] if facts.run["processes_per_node"] == 1 else 1
        if rank["cuda"]["available"] and seen < needed:
            return stop(
                f"{who(rank)} sees {seen} GPUs, the run declares {needed} for one process",
                f"ask for --gpus-per-node={needed}, not --gpus-per-task=1, and bind no GPUs to tasks",
            )
    models = {device["name"] for rank in _on_gpus(facts) for device in _devices(rank)}
    if len(models) > 1:
        return warn(
            f"GPUs of several models in one job: {listed(sorted(models))}",
            "the slowest sets the pace: name the GPU (`gpu_name` in the site's file)",
        )
    return fine(listed(sorted(models))) if models else None


@check("visible GPUs")
def visibility(facts: Facts) -> Finding | None:
    """Each rank sees only a GPU of its own: `invalid device ordinal` for some programs, and NCCL may fail."""
    alone = [rank for rank in _on_gpus(facts) if len(_devices(rank)) == 1 and not _shared(rank)]
    if facts.run["processes_per_node"] == 1 or facts.run["devices_per_node"] == 1 or not alone:
        return None
    fault = f"each rank sees one GPU only ({who(alone[0])}), of {facts.run['devices_per_node']} on the node"
    remedy = (
        "ask for --gpus-per-node, bound to no task, instead of --gpus-per-task=1; a program that takes its local "
        "rank as the device fails with `invalid device ordinal` (this one takes the remainder)"
    )
    if facts.run["backend"] != "nccl":
        return note(fault, remedy)
    return (warn if facts.allreduce else stop)(f"{fault}: NCCL cannot reach the others' GPUs directly", remedy)


@check("one GPU for each rank")
def sharing(facts: Facts) -> Finding | None:
    """Several ranks on one GPU: NCCL refuses that, also with MPS, unless it is told to take them."""
    used = [(rank, device["uuid"]) for rank in _on_gpus(facts) if (device := _own(rank)) and device["uuid"]]
    for (one, uuid), (other, same) in combinations(used, 2):
        if uuid != same or one["node"] != other["node"]:
            continue
        observation = f"{who(one)} and rank {other['rank']} are on one GPU ({uuid})"
        if _shared(one):
            return note(f"{observation}, which {SHARED} allows", "trust no speed that is measured so")
        if facts.run["backend"] == "nccl":
            return stop(
                f"{observation}: NCCL refuses that, also with MPS",
                "take backend gloo for several processes on one GPU, or ask for a GPU for each",
            )
        if not one["mps"]["program"] and not one["mps"]["active"]:
            return warn(
                f"{observation}, and there is no nvidia-cuda-mps-control",
                "they take turns: ask your site for NVIDIA's MPS; strategy mps then starts a daemon of its own",
            )
        return fine(f"{observation}; strategy mps starts an MPS daemon of its own")
    return fine("no GPU has two ranks") if used else None


@check("GPU kernel")
def kernel(facts: Facts) -> Finding | None:
    """A kernel that does not run, or computes nonsense."""
    for rank in _on_gpus(facts):
        if rank.get("kernel"):
            return stop(
                f"a first kernel failed for {who(rank)}: {rank['kernel']}",
                "run `nvidia-smi` on that node; tell your site, and leave the node out (--exclude) meanwhile",
            )
    return fine("a kernel runs on each") if any("kernel" in rank for rank in _on_gpus(facts)) else None


@check("GPU name")
def name(facts: Facts) -> Finding | None:
    """Another GPU than the one that was asked for."""
    requested = facts.job.get("gpu_name")
    names = sorted({device["name"] for rank in _on_gpus(facts) for device in _devices(rank)})
    if not requested or not names:
        return None
    model = re.split(r"[-_ .]", requested)[0].lower()
    model = next((part for part in re.findall(r"[a-z]+\d+", model)), model)  # h100sxm and v100l are h100 and v100
    if all(model in name.lower() for name in names):
        return fine(f"{listed(names)}, asked for as {requested}")
    return note(f"{listed(names)} where {requested} was asked for", "compare the results of one model of GPU only")


@check("MIG")
def mig(facts: Facts) -> Finding | None:
    """Slices of a GPU: NCCL cannot join several of them."""
    sliced = [d for rank in _on_gpus(facts) for d in _devices(rank) if " MIG " in f" {d['name']} "]
    if not sliced:
        return None
    if facts.run["backend"] == "nccl" and facts.run["world_size"] > 1:
        return stop(f"{sliced[0]['name']}: NCCL cannot join slices of GPUs", "ask for whole GPUs, or one process")
    return note(f"a slice of a GPU: {sliced[0]['name']}", "its speed is no whole GPU's")


@check("TF32")
def tf32(facts: Facts) -> Finding | None:
    """Products of matrices and convolutions in 10 bits of mantissa: torch's own defaults differ for the two."""
    for rank in _on_gpus(facts):
        on = [operation for operation, active in rank["torch"]["tf32"].items() if active]
        if on:
            return warn(f"TF32 is on for {listed(on)}", "it changes results in the third digit: set both explicitly")
    return fine("off for matrix products and convolutions") if _on_gpus(facts) else None


@check("MPS")
def mps(facts: Facts) -> Finding | None:
    """NVIDIA's MPS, where the strategy needs it."""
    if "mps" not in facts.needs:
        return None
    for rank in facts.ranks:
        if not rank["mps"]["program"] and not rank["mps"]["active"]:
            return stop(
                f"{rank['node']} has no nvidia-cuda-mps-control", "ask your site for MPS, or leave this strategy out"
            )
    return fine("nvidia-cuda-mps-control is there")
