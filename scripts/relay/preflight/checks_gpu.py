"""Checks of GPUs, driver and torch's CUDA. Tested on facts written by hand: the GPUs that they ran on had no faults."""

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from relay.preflight.findings import Facts, Finding, check, listed, note, stop, warn, who
from relay.process.one_gpu import SHARED
from relay.spec.cuda import OLDEST_DRIVER, of_modules
from relay.spec.versions import release

INSTALL = "install a CUDA build of torch for this stack (`torch:` of the site's environment, docs/environments.md)"


def _devices(rank: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return rank["cuda"]["devices"] if rank.get("cuda") else []


def _all_devices(facts: Facts) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each rank that has told of GPUs, with each GPU that it sees."""
    return ((rank, device) for rank in facts.on_gpus for device in _devices(rank))


def _own(rank: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The GPU that a rank uses; None before it has one."""
    index, devices = rank.get("device_index"), _devices(rank)
    return devices[index] if index is not None and index < len(devices) else None


def _shared(rank: Mapping[str, Any]) -> bool:
    """Whether NCCL is told that ranks share a GPU."""
    return rank["environment"].get(SHARED) == "1"


@check("torch's build", prevents_joining=True)
def build(facts: Facts) -> Iterator[Finding]:
    """A CPU build where GPUs are to be used; GPUs that a run on CPUs leaves alone."""
    for rank in facts.on_gpus:
        torch = rank["torch"]
        if torch["cuda"] is None and torch["hip"] is None:
            yield stop(f"device is cuda, but torch {torch['version']} on {rank['node']} is a build for CPUs", INSTALL)
    for rank in facts.ranks if facts.run["device"] == "cpu" else ():
        if gpus := rank["driver"]["gpus"]:
            yield note(
                f"{gpus} GPUs are on {rank['node']}, device is cpu",
                "set `device: cuda` to use them, or a partition without GPUs",
            )


@check("driver", prevents_joining=True)
def driver(facts: Facts) -> Iterator[Finding]:
    """No driver, or one that is too old for torch's CUDA, unless torch itself can use it."""
    for rank in facts.on_gpus:
        version, cuda, works = rank["driver"]["version"], rank["torch"]["cuda"], rank["cuda"]["available"]
        if cuda is None:
            continue
        if version is None:
            if not works:
                yield stop(
                    f"no NVIDIA driver is loaded on {rank['node']}",
                    "ask for a partition with GPUs (config/sites), or tell your site: the node may be broken",
                )
            continue
        major, least = int(version.split(".")[0]), OLDEST_DRIVER.get(int(cuda.split(".")[0]))
        if not least or major >= least:
            continue
        old = f"driver {version} on {rank['node']} is too old for torch's CUDA {cuda}, which needs {least} or newer"
        if works:
            yield note(
                f"{old}, yet torch can use its GPUs: forward compatibility (cuda-compat, a container)",
                "where CUDA fails later: a newer driver, or a build of torch for an older CUDA",
            )
            continue
        fitting = max((each for each, lowest in OLDEST_DRIVER.items() if lowest <= major), default=None)
        build = f"for CUDA {fitting}" if fitting else "for an older CUDA"
        remedy = f"install a build of torch {build} (`torch:` of the site's environment), or ask for a newer driver"
        yield stop(old, remedy)


@check("CUDA", prevents_joining=True)
def cuda(facts: Facts) -> Iterator[Finding]:
    """torch cannot use any GPU, for a reason that neither its build nor the driver's version is."""
    for rank in facts.on_gpus:
        if rank["torch"]["cuda"] is None or rank["cuda"]["available"]:
            continue
        reason = f": {rank['cuda']['messages'][0]}" if rank["cuda"]["messages"] else ""
        visible = rank["environment"].get("CUDA_VISIBLE_DEVICES", "not set")
        yield stop(
            f"torch sees no GPU from {who(rank)} (CUDA_VISIBLE_DEVICES {visible or 'empty'}){reason}",
            "ask for GPUs with --gpus-per-node; an empty CUDA_VISIBLE_DEVICES means that this step was given none",
        )


@check("CUDA module")
def cuda_module(facts: Facts) -> Iterator[Finding]:
    """A loaded module of another CUDA than torch was built with."""
    for rank in facts.on_gpus:
        own = rank["torch"]["cuda"]
        loaded = of_modules(rank["environment"].get("LOADEDMODULES", "").split(":"))
        if own and loaded and release(loaded)[:2] != release(own)[:2]:
            yield (warn if facts.compiles else note)(
                f"the module of CUDA {loaded} is loaded, torch {rank['torch']['version']} was built with CUDA {own}",
                f"what is compiled for this torch needs its own version: name cuda/{own} in the site's file "
                "(`modules`, `stack_modules`), or none",
            )


@check("GPU architecture", prevents_joining=True)
def architecture(facts: Facts) -> Iterator[Finding]:
    """A GPU for which torch has no machine code, nor intermediate code that the driver could translate."""
    for rank, device in _all_devices(facts):
        built_for, (major, minor) = rank["cuda"]["architectures"], device["capability"]
        if not built_for or any(_runs(name, major, minor) for name in built_for):
            continue
        if any(_translated(name, major, minor) for name in built_for):
            yield note(
                f"{device['name']} (sm_{major}{minor}) runs by translation: its first start is slow",
                "a build of torch that lists this architecture starts at once",
            )
            continue
        yield stop(
            f"{device['name']} is sm_{major}{minor}, torch {rank['torch']['version']} has {listed(built_for, 12)}",
            f"install a build of torch that lists sm_{major}{minor} (new GPUs need newer builds: an H100, sm_90, "
            "torch 2.3 on the Alliance's clusters; old GPUs need older ones)",
        )


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
def count(facts: Facts) -> Iterator[Finding]:
    """Fewer visible GPUs than the run declares."""
    needed = facts.run["devices_per_node"] if facts.run["processes_per_node"] == 1 else 1
    for rank in facts.on_gpus:
        seen = len(_devices(rank))
        if rank["cuda"]["available"] and seen < needed:
            yield stop(
                f"{who(rank)} sees {seen} GPUs, the run declares {needed} for one process",
                f"ask for --gpus-per-node={needed}, not --gpus-per-task=1, and bind no GPUs to tasks",
            )
    models = {device["name"] for _, device in _all_devices(facts)}
    if len(models) > 1:
        yield warn(
            f"GPUs of several models in one job: {listed(sorted(models))}",
            "the slowest sets the pace: name the GPU (`gpu_name` in the site's file)",
        )


@check("visible GPUs")
def visibility(facts: Facts) -> Iterator[Finding]:
    """Each rank sees only a GPU of its own: `invalid device ordinal` for some programs, and NCCL may fail."""
    alone = [rank for rank in facts.on_gpus if len(_devices(rank)) == 1 and not _shared(rank)]
    if facts.run["processes_per_node"] == 1 or facts.run["devices_per_node"] == 1 or not alone:
        return
    fault = f"each rank sees one GPU only ({who(alone[0])}), of {facts.run['devices_per_node']} on the node"
    remedy = (
        "ask for --gpus-per-node, bound to no task, instead of --gpus-per-task=1; a program that takes its local "
        "rank as the device fails with `invalid device ordinal` (this one takes the remainder)"
    )
    if facts.run["backend"] == "nccl":
        fault += ": NCCL cannot reach the others' GPUs directly"
        yield (warn if facts.allreduce else stop)(fault, remedy)
    else:
        yield note(fault, remedy)


@check("one GPU for each rank")
def sharing(facts: Facts) -> Iterator[Finding]:
    """Several ranks on one GPU: NCCL refuses that, also with MPS, unless it is told to take them."""
    used = [(rank, device["uuid"]) for rank in facts.on_gpus if (device := _own(rank)) and device["uuid"]]
    for (one, uuid), (other, same) in combinations(used, 2):
        if uuid != same or one["node"] != other["node"]:
            continue
        observation = f"{who(one)} and rank {other['rank']} are on one GPU ({uuid})"
        if _shared(one):
            yield note(f"{observation}, which {SHARED} allows", "trust no speed that is measured so")
        elif facts.run["backend"] == "nccl":
            yield stop(
                f"{observation}: NCCL refuses that, also with MPS",
                "take backend gloo for several processes on one GPU, or ask for a GPU for each",
            )
        elif not _has_mps(one):
            yield warn(
                f"{observation}, and there is no nvidia-cuda-mps-control",
                "they take turns: ask your site for NVIDIA's MPS; strategy mps then starts a daemon of its own",
            )


@check("GPU kernel")
def kernel(facts: Facts) -> Iterator[Finding]:
    """A kernel that does not run, or computes nonsense."""
    for rank in facts.on_gpus:
        if rank.get("kernel"):
            yield stop(
                f"a first kernel failed for {who(rank)}: {rank['kernel']}",
                "run `nvidia-smi` on that node; tell your site, and leave the node out (--exclude) meanwhile",
            )


@check("GPU name")
def name(facts: Facts) -> Iterator[Finding]:
    """Another GPU than the one that was asked for."""
    requested = facts.job.get("gpu_name")
    if not requested:
        return
    names = sorted({device["name"] for _, device in _all_devices(facts)})
    model = re.split(r"[-_ .]", requested)[0].lower()
    model = next((part for part in re.findall(r"[a-z]+\d+", model)), model)  # h100sxm and v100l are h100 and v100
    if not all(model in name.lower() for name in names):
        yield note(f"{listed(names)} where {requested} was asked for", "compare the results of one model of GPU only")


@check("MIG")
def mig(facts: Facts) -> Iterator[Finding]:
    """Slices of a GPU: NCCL cannot join several of them."""
    for _, device in _all_devices(facts):
        if " MIG " not in f" {device['name']} ":
            continue
        if facts.run["backend"] == "nccl" and facts.run["world_size"] > 1:
            yield stop(f"{device['name']}: NCCL cannot join slices of GPUs", "ask for whole GPUs, or one process")
        else:
            yield note(f"a slice of a GPU: {device['name']}", "its speed is no whole GPU's")


@check("TF32")
def tf32(facts: Facts) -> Iterator[Finding]:
    """Products of matrices and convolutions in 10 bits of mantissa: torch's own defaults differ for the two."""
    for rank in facts.on_gpus:
        if on := [operation for operation, active in rank["torch"]["tf32"].items() if active]:
            yield warn(f"TF32 is on for {listed(on)}", "it changes results in the third digit: set both explicitly")


@check("MPS")
def mps(facts: Facts) -> Iterator[Finding]:
    """NVIDIA's MPS, where the strategy needs it."""
    for rank in facts.ranks if "mps" in facts.needs else ():
        if not _has_mps(rank):
            remedy = "ask your site for MPS, or leave this strategy out"
            yield stop(f"{rank['node']} has no nvidia-cuda-mps-control", remedy)


def _has_mps(rank: Mapping[str, Any]) -> bool:
    """Whether there is a program that starts NVIDIA's MPS, or a daemon of the site's."""
    return bool(rank["mps"]["program"] or rank["mps"]["active"])
