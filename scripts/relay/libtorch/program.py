"""The C++ program: built once with CMake against the environment's torch, kept, and started."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from relay.base.errors import UserError
from relay.environments import kept
from relay.environments.kept import Build
from relay.run_folder.known_faults import look_up
from relay.spec.job import FLAG

NAME = "relay_libtorch"
# The site's flags, by CMake's variable. Variables in them are those of the job's modules.
FLAGS = {"compile_flags": "CMAKE_CXX_FLAGS", "link_flags": "CMAKE_EXE_LINKER_FLAGS"}
PROGRAMS = {**kept.COMPILERS, "cmake": "cmake"}
# Which module brings a shared library, by the beginning of its name; the first that fits.
MODULES = {
    r"libcudnn": "cudnn",
    r"libcusparseLt": "cusparselt",
    r"libnccl": "nccl",
    r"libcu(dart|blas|fft|rand|solver|sparse|pti|file)|libnv": "cuda",
    r"libabsl": "abseil",
    r"libprotobuf": "protobuf",
    r"libopencv": "opencv",
    r"libstdc\+\+|libgcc|libgomp|libgfortran": "gcc",
    r"libmkl|libiomp": "imkl",
    r"libmpi": "openmpi",
}
# A backtrace, and where in torch's or the model's source an error was raised: of no use to whoever runs the program.
_PLACE = re.compile(r"\s*(frame #\d+:|Exception raised from |terminate called after throwing|Traceback of TorchScript)")


def cmake_options(environment: Mapping[str, Any]) -> list[str]:
    """What a site adds to CMake's command line. `environment` is a job's (`login_node.environment_of`).

    Raises UserError for a flag with a variable that is not set on this node, or whose value no flag may have.
    """
    options = []
    for key, name in FLAGS.items():
        if flags := environment.get(key):
            options.append(f"-D{name}={' '.join(_expanded(key, flag) for flag in flags)}")
    if arch_list := environment.get("arch_list"):
        options.append(f"-DTORCH_CUDA_ARCH_LIST={arch_list}")
    return options


def _expanded(key: str, flag: str) -> str:
    """A flag without variables. CMake writes it into a shell's command."""
    expanded = os.path.expandvars(flag)
    where = f"libtorch.{key}: {flag!r} on node {os.uname().nodename}"
    if unset := re.search(r"\$\{?(\w+)", expanded):
        remedy = "name the module that sets it under stack_modules.libtorch in the site's file, or correct the flag"
        raise UserError(f"{where}: the variable {unset[1]} is not set there; {remedy}")
    allowed, pattern = FLAG
    if not re.fullmatch(pattern, expanded) or "$" in expanded:
        raise UserError(f"{where} is {expanded!r}, which is not allowed; allowed: {allowed}")
    return expanded


def program(sources: Path, site_options: Sequence[str] = ()) -> Path:
    """The program, built from the folder `sources` unless it is in the cache.

    `site_options` are those of `cmake_options`. Raises UserError where the build fails.
    """
    texts = [path.read_text(encoding="utf-8") for path in sorted(sources.iterdir()) if path.is_file()]
    about_torch = [torch.__version__, str(torch.version.cuda), torch.compiled_with_cxx11_abi()]
    depends_on = [texts, about_torch, kept.compilers("cmake"), list(site_options)]
    return kept.kept("libtorch", depends_on, NAME, partial(_build, sources, site_options))


def said(executable: Path, *words: object) -> str:
    """What the program prints. Raises UserError with its own words, or with the libraries that it lacks."""
    libraries = [str(Path(torch.__file__).parent / "lib"), os.environ.get("LD_LIBRARY_PATH")]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    how: dict[str, Any] = {"env": environment, "capture_output": True, "text": True}
    done = subprocess.run([str(executable), *map(str, words)], check=False, **how)
    if done.returncode:
        ldd = subprocess.run(["ldd", str(executable)], check=False, **how)
        lacks = _absent(ldd.stdout, os.environ.get("LOADEDMODULES", ""))
        raise UserError(f"the C++ program failed: {lacks or _explained(done.stderr) or f'status {done.returncode}'}")
    return str(done.stdout)


def _build(sources: Path, site_options: Sequence[str], build: Build) -> Path:
    """Configure and build; the program's path."""
    # The path to torch's libraries is given when the program is started: environments come and go on a node's disk.
    options = [f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}", "-DCMAKE_SKIP_RPATH=ON"]
    options += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}", *site_options]
    build.run(["cmake", "-S", str(sources), "-B", str(build.folder), *options])
    build.run(["cmake", "--build", str(build.folder), "--parallel", kept.cpus()])
    return build.folder / NAME


def _explained(said: str) -> str:
    """What the program said on standard error as one line: its message, and the likely cause where it is known."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _PLACE.match(line)]
    # TorchScript gives its reason last, after the model's source; a c10::Error first, before the backtrace.
    reason = next((line for line in reversed(lines) if re.match(r"[A-Z]\w*Error: ", line)), None)
    message = (reason or " ".join(lines)).removeprefix("relay_libtorch: ").removeprefix("what():").strip()[:500]
    cause = look_up(message, "cpp")
    return f"{message} ({cause.remedy})" if cause else message


def _absent(ldd: str, loaded: str) -> str:
    """The shared libraries that `ldd` has not found, as one line, each with its module; '' where it found all.

    `loaded`: the modules of the job, as their system lists them in LOADEDMODULES.
    """
    absent = []
    for library in dict.fromkeys(re.findall(r"(?m)^\s*(\S+) => not found", ldd)):
        name = next((module for begin, module in MODULES.items() if re.match(begin, library)), None)
        there = name and next((each for each in loaded.split(":") if each.partition("/")[0] == name), None)
        brings = f"{there} is loaded and lacks it, name another version" if there else f"the module {name} brings it"
        absent.append(f"{library} ({brings if name else 'look for its module with `module spider`'})")
    if not absent:
        return ""
    return f"not found: {', '.join(absent)}; modules of this job: stack_modules.libtorch in the site's file"
