"""The C++ program that runs a trained model: built once with CMake against the environment's torch, and kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from relay.base.errors import UserError
from relay.environments import built
from relay.environments.recipes import COMPILER, Recipe

NAME = "relay_libtorch"
RECIPE = Recipe(package="the C++ program", tried="", programs={**COMPILER, "cmake": "cmake"})


def lacking() -> list[str]:
    """What this machine lacks for the build, one line for each thing, with the Debian package that brings it."""
    return built.lacking(RECIPE, "cpu")


def program(sources: Path) -> Path:
    """The program, built from the folder `sources` unless it is in the cache. Raises UserError where that fails."""
    place = built.cache() / "built" / f"libtorch-{_key(sources)}"
    with built.in_the_cache(), built.only_one(place):
        if not (place / NAME).is_file():
            _build(sources, place)
    return place / NAME


def _key(sources: Path) -> str:
    """A digest of all that the program depends on: its sources, compiler, CMake, torch, machine."""
    said = [
        subprocess.run([word, "--version"], check=False, capture_output=True, text=True).stdout
        for word in ("g++", "cmake")
    ]
    known = [path.read_text(encoding="utf-8") for path in sorted(sources.iterdir()) if path.is_file()]
    known += [*said, torch.__version__, str(torch.version.cuda), str(torch.compiled_with_cxx11_abi())]
    return hashlib.sha256(json.dumps([*known, platform.machine()]).encode()).hexdigest()[:12]


def _build(sources: Path, place: Path) -> None:
    """Configure and build in a temporary folder on a local disk, then move the program to its place."""
    print(f"Building {NAME} against torch {torch.__version__}; this is done once", flush=True)
    log = place.with_suffix(".log")
    cpus = str(min(len(os.sched_getaffinity(0)), built.MOST_CPUS))
    with tempfile.TemporaryDirectory(prefix="torch-relay-libtorch-") as text, log.open("w", encoding="utf-8") as said:
        # The path to torch's libraries is given when the program is started: environments come and go on a node's disk.
        options = [f"-DCMAKE_PREFIX_PATH={torch.utils.cmake_prefix_path}", "-DCMAKE_SKIP_RPATH=ON"]
        options += ["-DCMAKE_BUILD_TYPE=Release", f"-DPython_EXECUTABLE={sys.executable}"]
        for words in (
            ["cmake", "-S", str(sources), "-B", text, *options],
            ["cmake", "--build", text, "--parallel", cpus],
        ):
            if subprocess.run(words, stdout=said, stderr=subprocess.STDOUT, check=False).returncode:
                raise UserError(f"{NAME} could not be built: {_why(log)}; all that was said is in {log}")
        partial = place.with_name(f".{place.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        shutil.copy2(Path(text) / NAME, partial)
        shutil.rmtree(place, ignore_errors=True)
        partial.rename(place)


def _why(log: Path) -> str:
    """The first line of the log that tells an error, and the next one: CMake gives its reason there."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    place = next((n for n, line in enumerate(lines) if "error" in line.lower()), None)
    return "no line says why" if place is None else " ".join(lines[place : place + 2])[:300]
