"""Wheels of packages that publish none, built once for each combination of compiler, torch and Python, and kept.

A build runs on the login node, or in a job that is not measured.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.environments import kept, nvcc, pip
from relay.environments.kept import Build
from relay.environments.locks import Pin
from relay.environments.recipes import NVCC, RECIPES, Recipe
from relay.run_folder.known_faults import look_up
from relay.spec import cuda

ANY_GPU = (None, None)  # neither its name nor its generation is known
ABOUT = """
import importlib.util, json, sys, torch
about = [sys.version, torch.__version__, torch.version.cuda, torch.compiled_with_cxx11_abi()]
try:
    (nccl,) = importlib.util.find_spec("nvidia.nccl").submodule_search_locations
except (AttributeError, ImportError):
    nccl = ""
print(json.dumps({"about": about, "cuda": torch.version.cuda, "nccl": nccl}))
"""


def optional(recipe: Recipe) -> list[str]:
    """Those of a recipe's optional headers that this machine has."""
    return [header for header in recipe.optional_headers if has_header(header)]


def has_header(name: str) -> bool:
    """Whether the C++ compiler finds a header; without a compiler, whether it lies where one would look."""
    if shutil.which("g++") is None:
        folders = [*os.environ.get("CPATH", "").split(os.pathsep), "/usr/include", "/usr/local/include"]
        return any((Path(folder) / name).is_file() for folder in folders if folder)
    words, code = ["g++", "-E", "-x", "c++", "-"], f"#include <{name}>\n"
    try:
        done = subprocess.run(words, input=code, check=False, capture_output=True, text=True)
        return done.returncode == 0
    except OSError:
        return False


def wheel(pin: Pin, python: Path, build: str, arch_list: str | None = None) -> Path:
    """The wheel of a lock's package, built for the torch of an interpreter unless it is in the cache.

    `python` has torch, and what else the build needs, among its packages. `build` is torch's: cpu, or a CUDA build.
    `arch_list` is what CUDA code is built for, as TORCH_CUDA_ARCH_LIST takes it; None: the user's own, or all that the
    build of torch is for.
    Raises UserError for missing programs, for an nvcc of another version than torch's CUDA, for a source whose hash the
    lock does not have, for a failed build, whose log it names, and for a wheel that cannot be imported.
    """
    recipe, needs = RECIPES[pin.name], f"{pin.name} has to be compiled here, and"
    if missing := kept.lacking({**recipe.programs, **({} if build == "cpu" else NVCC)}):
        raise UserError(f"{needs} this machine lacks: {'; '.join(missing)}")
    torch = _torch_of(python)
    if build != "cpu" and (problem := nvcc.problem(torch["cuda"])):
        raise UserError(f"{needs} {problem}")
    arch_list = arch_list or os.environ.get("TORCH_CUDA_ARCH_LIST") or ";".join(cuda.capabilities([ANY_GPU], build))
    numbers = ",".join(re.findall(r"\d+", arch_list.replace(".", "")))
    values = {"arch_list": arch_list, "capabilities": numbers, "nccl": torch["nccl"]}
    variables = recipe.environment(build, values)
    lasting = {name: value for name, value in variables.items() if value != torch["nccl"]}  # a temporary folder's
    depends_on = [pin.lines(), repr(recipe), torch["about"], build, optional(recipe), lasting, kept.compilers()]
    depends_on += [nvcc.version()] if build != "cpu" else []
    make = partial(_build, pin, recipe, python, variables)
    return kept.kept(pin.name, depends_on, f"{pin.name}=={pin.version}", make)


def _torch_of(python: Path) -> dict[str, Any]:
    """What an interpreter's torch says of itself: `about` it, its `cuda`, and the folder of its `nccl`."""
    done = subprocess.run([str(python), "-P", "-c", ABOUT], capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        fault = look_up(last)
        raise UserError(f"{python}: torch cannot be imported: {last}" + (f"; {fault.remedy}" if fault else ""))
    torch: dict[str, Any] = json.loads(done.stdout)
    return torch


def _build(pin: Pin, recipe: Recipe, python: Path, variables: dict[str, str], build: Build) -> Path:
    """Fetch the source, change it as the recipe says, build it, and try it; the path of the wheel."""
    folder = build.folder
    (folder / "tmp").mkdir()
    (folder / "source.txt").write_text(pin.lines(), encoding="utf-8")
    # The headers and libraries of the environment that it is built for, whatever Python's variables say.
    environment = pip.isolated()
    environment |= {"PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    environment |= {"TMPDIR": str(folder / "tmp")}  # where compilers and pip leave files when they are ended
    environment |= {"MAX_JOBS": kept.cpus(), "MAKEFLAGS": f"-j{kept.cpus()}", **variables}
    plainly = ["--no-deps", "--no-build-isolation"]
    source = ["--no-binary=:all:", "--require-hashes", "--requirement", str(folder / "source.txt")]
    program = pip.program(python)
    build.run([*program, "download", *plainly, *source, "--dest", str(folder / "sdist")], environment)
    with tarfile.open(next((folder / "sdist").glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "source", filter="data")
    unpacked = next(path for path in (folder / "source").iterdir() if path.is_dir())
    try:
        recipe.patch(unpacked)
    except (OSError, ValueError) as error:
        raise build.failed(str(error)) from None
    build.run([*program, "wheel", *plainly, "--wheel-dir", str(folder / "wheel"), str(unpacked)], environment)
    wheel = next((folder / "wheel").glob("*.whl"))
    tried = str(folder / "tried")  # a wheel whose compiled parts do not fit this torch is never kept
    plain = environment | {"PIP_CONFIG_FILE": os.devnull}  # it may name a further place
    build.run([*program, "install", "--no-deps", "--no-index", "--target", tried, str(wheel)], plain)
    build.run([str(python), "-P", "-c", recipe.tried], environment | {"PYTHONPATH": tried})
    return wheel
