"""What a process can tell of its node and of what it was given there, without torch: collected before torch is loaded.

OpenMP binds the process that loads it (`OMP_PROC_BIND`), so that the CPUs that Slurm gave are seen only before.
"""

import ctypes.util
import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.environments.built import has_header
from relay.environments.node_folder import looked_at, noexec
from relay.launch.gpus import count_gpus
from relay.process import cpus, mps_daemon, system
from relay.spec.run import Preflight
from relay.spec.versions import EVERY_JOB, NVML, installed, names_in, packages_of

# Where compiled extensions go unless their variable says otherwise.
CACHES = {"TORCH_EXTENSIONS_DIR": "~/.cache/torch_extensions", "TRITON_CACHE_DIR": "~/.triton"}
# What torch.compile builds with: C++ for CPUs; for GPUs, Triton's own compiler and C for what calls its kernels.
COMPILERS = {"CXX": ("g++",), "CC": ("gcc", "clang")}
# What such code includes (torch's `_inductor/cpp_builder.py`, Triton's `runtime/build.py`), and a flag.
COMPILED = {
    "CXX": (
        "c++",
        "#include <Python.h>\n#include <omp.h>\nint threads() { return omp_get_max_threads(); }",
        "-fopenmp",
    ),
    "CC": ("c", "#include <Python.h>\nint version() { return PY_MAJOR_VERSION; }", "-O2"),
}
WRITTEN_BYTES = 32 * 1024**2
LIMITS = {"open_files": resource.RLIMIT_NOFILE, "locked_memory_bytes": resource.RLIMIT_MEMLOCK}


def collect(run: Preflight, job: Mapping[str, Any] | None) -> dict[str, Any]:
    """This process's facts. Sizes are in bytes or MB (2**20 bytes) as their names say; None is what cannot be told."""
    environment = os.environ
    host = socket.gethostname()
    name, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return {
        "rank": int(environment.get("RANK", "0")),
        "local_rank": int(environment.get("LOCAL_RANK", "0")),
        "host": host,
        "node": environment.get("SLURMD_NODENAME", host),  # several nodes of Slurm may be one host
        "addresses": addresses(host),
        "rendezvous": {"name": name, "port": port, "addresses": addresses(name)} if name else None,
        "interfaces": [name for _, name in socket.if_nameindex()],
        "infiniband": infiniband(Path("/sys/class/infiniband")),
        "slurm": system.slurm_variables(),
        "environment": system.recorded_variables(),
        "affinity": sorted(cpus.granted()),
        "node_cpus": os.cpu_count(),
        "node_memory_mb": system.machine_memory_bytes() // 2**20,
        "folder": str(Path.cwd()),
        "python": sys.executable,
        "python_version": platform.python_version(),
        "node_disk": node_disk(job),
        "caches": {name: cache(Path(environment.get(name, usual))) for name, usual in CACHES.items()},
        "home": located(Path("~")),
        "shared_memory_bytes": shared_memory(),
        "limits": {name: limit(of) for name, of in LIMITS.items()},
        "libaio": {"library": ctypes.util.find_library("aio"), "header": has_header("libaio.h")},
        "mps": {
            "program": shutil.which(mps_daemon.CONTROL),
            "active": Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists(),
        },
        "compilers": {name: compiler(name) for name in COMPILERS},
        "compiling": {name: compiling(name) for name in COMPILERS} if run.compile else {},
        "packages": {name: installed(name) for name in names_in((*EVERY_JOB, *packages_of(run.node_needs), NVML))},
        "memory_limit_mb": system.memory_limit_mb(),
        "driver": {"version": system.driver(), "gpus": count_gpus()},
    }


def addresses(name: str | None) -> list[str]:
    """The addresses that a name resolves to; none where it does not."""
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, proto=socket.IPPROTO_TCP)})
    except OSError:
        return []


def infiniband(folder: Path) -> list[str]:
    """The active InfiniBand ports as `device/port`; RoCE's ports, whose link layer is Ethernet, are not among them."""
    return sorted(
        f"{port.parts[-3]}/{port.name}"
        for port in folder.glob("*/ports/*")
        if "ACTIVE" in system.text(port / "state") and system.text(port / "link_layer").strip() == "InfiniBand"
    )


def filesystem(path: Path) -> str | None:
    """The type of the filesystem that a path is on, or would be on (nfs4, lustre, ext4, …)."""
    path, kind, deepest = path.resolve(), None, -1
    for line in system.text(Path("/proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        # Blanks and the like are written as octal numbers there.
        place = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]))
        if path.is_relative_to(place) and len(place.parts) >= deepest:  # of mounts on one place, the last is seen
            kind, deepest = after.split()[0], len(place.parts)
    return kind


def located(path: Path) -> dict[str, Any]:
    """A path and its filesystem's type."""
    with suppress(RuntimeError):  # a user without a home folder, as in some containers
        path = path.expanduser()
    return {"path": str(path), "filesystem": filesystem(path)}


def cache(path: Path) -> dict[str, Any]:
    """A cache's path, its filesystem's type, and the folder through which others can put their files there, or None.

    Of a path that is not there yet, whoever can write to the folder above may make it first.
    """
    location = located(path)
    for there in (at := Path(location["path"]).absolute(), *at.parents):
        try:
            status = there.stat()
        except OSError:
            continue
        others = status.st_uid not in (0, os.getuid()) or status.st_mode & 0o002
        return location | {"open": str(there) if others else None}
    return location | {"open": None}


def node_disk(job: Mapping[str, Any] | None) -> dict[str, Any]:
    """The node's own disk as the site declares it, expanded here; `error` says why it cannot be used, or is None."""
    declared = (job or {}).get("node_disk")
    path, problem = looked_at(declared or os.environ.get("SLURM_TMPDIR") or tempfile.gettempdir())
    disk: dict[str, Any] = {"declared": declared, "path": str(path), "filesystem": None, "free_bytes": None}
    disk |= {"noexec": False, "error": problem or None}
    if problem:
        return disk
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix="relay-preflight-") as stream:
            first = os.environ.get("LOCAL_RANK", "0") == "0"  # one a node: several would share the bandwidth
            content = os.urandom(WRITTEN_BYTES if first else 1)  # random: a filesystem may compress
            started = time.perf_counter()
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            seconds = time.perf_counter() - started
        free_bytes, disk["noexec"] = shutil.disk_usage(path).free, noexec(path)
    except OSError as error:
        return disk | {"error": error.strerror or str(error)}
    disk |= {"filesystem": filesystem(path), "free_bytes": free_bytes}
    return disk | {"written_bytes_per_second": round(WRITTEN_BYTES / seconds) if first else None}


def shared_memory() -> int | None:
    """The free bytes of /dev/shm; None where there is none, as on macOS."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


def limit(of: int) -> int | None:
    """A limit of this process, as `ulimit` sets it; None where it is unlimited."""
    most, _ = resource.getrlimit(of)
    return None if most == resource.RLIM_INFINITY else most


def compiler(variable: str) -> str | None:
    """The compiler that the variable names, else the usual one; None where it is not there."""
    named = os.environ.get(variable)
    return next(filter(None, map(shutil.which, (named,) if named else COMPILERS[variable])), None)


def compiling(variable: str) -> str | None:
    """What the compiler says, in one line, to such code as torch.compile builds with it; None where all is there."""
    if (program := compiler(variable)) is None:
        return None  # told as such
    language, code, flag = COMPILED[variable]
    with tempfile.TemporaryDirectory(prefix="relay-preflight-") as folder:
        words = [program, f"-I{sysconfig.get_path('include')}", "-x", language, "-", "-shared", "-fPIC", flag]
        words += ["-o", f"{folder}/tried.so"]
        try:
            done = subprocess.run(words, input=code, capture_output=True, text=True, check=False, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{program}: {error}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    message = next((line for line in lines if "error" in line), lines[0] if lines else f"status {done.returncode}")
    return message[:300] if done.returncode else None
