"""Checks of a node's disk, its filesystems, and the software there."""

import re
from collections.abc import Iterator
from pathlib import PurePath

from relay.environments.locks import base
from relay.preflight.findings import Facts, Finding, check, listed, note, stop, warn, who
from relay.spec.versions import EVERY_JOB, NAMES, NVML, lacking, least_of, packages_of, too_old

NETWORK = re.compile(
    r"(nfs|lustre|gpfs|beegfs|ceph|cifs|smb|panfs|pvfs|orangefs|wekafs|afs|9p|fuse\.(sshfs|gluster|ceph))"
)
LEAST_DISK_BYTES = 2 * 10**9  # an environment of torch for CPUs has 1 GB, for GPUs 7


def _on_network(filesystem: str | None) -> bool:
    """Whether that type of filesystem is shared over a network."""
    return bool(filesystem and NETWORK.match(filesystem))


@check("shared folder")
def shared_folder(facts: Facts) -> Iterator[Finding]:
    """A project folder that not all nodes see: checkpoints, records and code are exchanged through it."""
    folders = {rank["folder"] for rank in facts.ranks}
    remedy = "keep the project, its results and the driver's Python on a filesystem that all nodes share"
    if len(folders) > 1:
        yield stop(f"the processes' working directories differ: {listed(sorted(folders))}", remedy)
    for rank in facts.telling("seen"):
        if not all(rank["seen"]["work"]):
            blind = rank["seen"]["work"].index(False)
            unseen = f"what rank {blind} on {facts.ranks[blind]['node']} writes into the results"
            yield stop(f"{who(rank)} does not see {unseen}", remedy)


@check("node's disk")
def node_disk(facts: Facts) -> Iterator[Finding]:
    """A node's own disk that is missing, full, or not the node's own."""
    installs = facts.job.get("environment", {}).get("mode") == "wheels"
    needed = installs or "node_disk" in facts.needs
    for rank in facts.ranks:
        disk = rank["node_disk"]
        if disk["error"]:
            declared = f" (node_disk '{disk['declared']}')" if disk["declared"] else ""
            # Where nothing was declared, nothing relies on it.
            yield (stop if needed or disk["declared"] else note)(
                f"{disk['path']}{declared} cannot be used on {rank['node']}: {disk['error']}",
                "correct `node_disk` in the site's file: a folder on the node's own disk, writable in a job",
            )
        elif disk["noexec"] and (installs or facts.compiles):
            yield stop(
                f"{disk['path']} on {rank['node']} is mounted noexec: no library there can be loaded",
                "name another folder as `node_disk` in the site's file: environments and what is compiled are there",
            )
        elif _on_network(disk["filesystem"]) or _seen_elsewhere(facts, rank["rank"]):
            yield warn(
                f"{disk['path']} on {rank['node']} is shared with other nodes ({disk['filesystem']})",
                "name the node's own disk (`node_disk` in the site's file): environments are built there",
            )
        elif disk["free_bytes"] < LEAST_DISK_BYTES:
            yield warn(
                f"{disk['path']} on {rank['node']} has {disk['free_bytes'] / 1e9:.1f} GB free",
                "ask for more (--tmp), or name another `node_disk` in the site's file",
            )


def _seen_elsewhere(facts: Facts, rank: int) -> bool:
    """Whether a rank on another node sees what this one writes on its node's disk."""
    home = facts.ranks[rank]["node"] if facts.complete else None
    return facts.complete and any(
        other["node"] != home and other["host"] != facts.ranks[rank]["host"] and other["seen"]["node_disk"][rank]
        for other in facts.ranks
    )


@check("caches")
def caches(facts: Facts) -> Iterator[Finding]:
    """Compiled extensions on a network filesystem, where builds lock each other out, or where others can write."""
    tell = warn if facts.compiles else note
    own = "`node_disk` in the site's file names the disk: jobs keep their caches in a folder of your own below it"
    for rank in facts.ranks:
        for name, at in rank["caches"].items():
            where = f"{name} is {at['path']} on {rank['node']}"
            if _on_network(at["filesystem"]):
                remedy = f"builds wait for each other there: set it to the node's own disk; {own}"
                yield tell(f"{where}, on {at['filesystem']}", remedy)
            elif at["open"]:
                remedy = f"what they put there would be run: set it to a folder of your own; {own}"
                yield tell(f"{where}, and others can write to {at['open']}", remedy)


@check("compiler")
def compiler(facts: Facts) -> Iterator[Finding]:
    """torch.compile without a compiler, Python's header or OpenMP: it would fail in the first step."""
    variable, language = ("CC", "C") if facts.run["device"] == "cuda" else ("CXX", "C++")
    for rank in facts.ranks if facts.run.get("compile") else ():
        if not rank["compilers"][variable]:
            yield stop(
                f"torch.compile needs a {language} compiler, and there is none on {rank['node']}",
                f"load the site's module of one (`modules` in the site's file), name it in {variable}, or leave "
                "`compile` out",
            )
        if problem := rank["compiling"].get(variable):
            yield stop(
                f"torch.compile cannot build {language} code on {rank['node']}: {problem}",
                f"it needs Python's header (Debian: python3-dev; on a cluster the module that brings {rank['python']}) "
                "and, for CPUs, a compiler with OpenMP (gcc): see `modules` in the site's file; or leave `compile` out",
            )


@check("locks")
def locks(facts: Facts) -> Iterator[Finding]:
    """A results folder where a lock of one node is not known on another, or none can be taken."""
    for rank in facts.telling("lock"):
        yield warn(
            f"the results folder, locked from {who(rank)}: {rank['lock']}",
            "two trainers of one run are not kept apart, nor two drivers: start the workflow once at a time on these "
            "results, or keep them on a filesystem with flock on all nodes (Lustre: the mount option `flock`)",
        )


@check("libaio")
def libaio(facts: Facts) -> Iterator[Finding]:
    """libaio, which DeepSpeed needs to offload to NVMe."""
    for rank in facts.ranks:
        if missing := [part for part in ("library", "header") if not rank["libaio"][part]]:
            yield (stop if "libaio" in facts.needs else note)(
                f"libaio's {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not on {rank['node']}",
                "only DeepSpeed's offloading to NVMe needs it: load its module, or install libaio-dev (or conda's "
                "libaio) and add its folders to CPATH and LIBRARY_PATH",
            )


@check("torchvision")
def torchvision(facts: Facts) -> Iterator[Finding]:
    """A torchvision that was built for another torch (`operator torchvision::nms does not exist`)."""
    for rank in facts.telling("torchvision"):
        package, torch = rank["torchvision"], rank["torch"]["version"]
        if not package["error"]:
            continue
        mismatch = f"torchvision {package['version']} does not fit torch {torch}: {package['error']}"
        if package["mended"]:
            yield note(f"{mismatch}; tasks work around it", "nothing is to be done for this project")
        else:
            remedy = "install both from one index, in the versions that belong together (envs/ pins them)"
            yield warn(f"{mismatch}; a task that imports it fails", remedy)


@check("versions that the strategies need")
def least_versions(facts: Facts) -> Iterator[Finding]:
    """A torch or a Python that is older than a strategy needs."""
    for rank in facts.ranks:
        installed = {"torch": rank.get("torch", {}).get("version"), "python": rank.get("python_version")}
        for name, version in installed.items():
            if version and (problem := too_old(name, version, least_of(facts.needs, name))):
                yield stop(
                    f"a strategy of this check {problem} ({who(rank)})",
                    f"give the site's environment a newer {NAMES[name]}, or leave the strategy out: "
                    "docs/torch-versions.md has what each needs",
                )


@check("packages that the jobs need")
def packages(facts: Facts) -> Iterator[Finding]:
    """An environment without numpy or the strategy's framework, or with an unknown version."""
    for rank in facts.telling("packages"):
        for problem in lacking([*EVERY_JOB, *packages_of(facts.needs)], rank["packages"]):
            yield stop(
                f"a run of this check {problem} ({who(rank)}, {rank['python']})",
                f"install it into the environment of stack {base(facts.run['stack'])}, or name another one in the "
                "site's file (`environment`), or leave out the strategy that needs it",
            )


@check("figures of GPUs")
def gpu_figures(facts: Facts) -> Iterator[Finding]:
    """An environment without NVIDIA's package for NVML: how busy GPUs are stays unknown."""
    for rank in facts.telling("packages") if facts.run["device"] == "cuda" else ():
        if any(lacking([NVML], rank["packages"])):
            yield warn(
                f"nvidia-ml-py is not in the environment of {who(rank)}: how busy the GPUs are, and their memory, "
                "power and clocks, will not be recorded",
                f"install it there (`pip install nvidia-ml-py`; where wheels are listed: environment.packages."
                f"{base(facts.run['stack'])} of the site's file). Runs need it for nothing else",
            )


@check("torch on all nodes")
def versions(facts: Facts) -> Iterator[Finding]:
    """Different versions of torch in one job."""
    rank_by_version = {rank["torch"]["version"]: rank for rank in facts.telling("torch")}
    if len(rank_by_version) > 1:
        shown = listed([f"{version} ({who(rank)})" for version, rank in sorted(rank_by_version.items())])
        yield stop(f"the ranks have different versions: {shown}", "remove half-built environments on the nodes")


@check("home folder's packages")
def home_packages(facts: Facts) -> Iterator[Finding]:
    """A torch from `pip install --user`, which hides the environment's."""
    for rank in facts.telling("torch"):
        folder = rank["torch"]["folder"]
        if PurePath(folder).is_relative_to(PurePath(rank["home"]["path"]) / ".local"):
            yield warn(
                f"torch comes from {folder}, not from the environment of {rank['python']}",
                "set PYTHONNOUSERSITE=1, or remove the packages there",
            )
