"""Further stacks: their locks, the environment above the driver's own, and packages that are built here."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import stacks
from living import LONGEST_SECONDS, until
from relay.base.errors import UserError
from relay.chain.supervisor import stat_fields
from relay.environments import built, kept, login_node, node, overlay, versioned
from relay.environments.locks import Pin, read
from relay.environments.recipes import RECIPES, Recipe
from tiny_stack import ROOT, python, small_lock

ENVS = ROOT / "envs"
STACKS = stacks.FURTHER


def versions(name: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for pin in read(ENVS / f"{name}.txt"):
        found.setdefault(pin.name, set()).add(pin.version)
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Other tests let this process see the packages of a stack.
    monkeypatch.setattr(sys, "path", [each for each in sys.path if not Path(each).is_relative_to(kept.cache())])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torch-relay"


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_stands_alone_and_agrees_with_torch_and_the_driver(stack: str) -> None:
    mine, torch, driver = versions(stack), versions("torch"), versions("driver")
    assert torch.items() <= mine.items(), "a node has nothing but this stack"
    both = mine.keys() & driver.keys()
    assert [driver[name] for name in both] == [mine[name] for name in both], "on a laptop it stands beside the driver's"


def asked(lock: Path) -> dict[str, object]:
    return login_node.environment_of(None, lock.stem, lock.parent.parent)


@pytest.mark.slow
def test_the_environment_has_its_own_packages_and_the_drivers_beneath(tmp_path: Path) -> None:
    lock = small_lock(tmp_path / "envs/small.txt", "torch", "numpy", "einops", "hjson", of="deepspeed")
    record = login_node.prepare(asked(lock), lock)
    assert record["differs"] == []
    (python,) = node.interpreter(asked(lock), tmp_path)
    told = "import json, einops, numpy, sys; print(json.dumps([einops.__file__, numpy.__file__, sys.prefix]))"
    done = subprocess.run([python, "-c", told], check=True, capture_output=True, text=True)
    own, drivers, prefix = json.loads(done.stdout)
    assert own.startswith(prefix)
    assert drivers.startswith(sys.prefix)
    assert not list(Path(prefix).glob("lib/*/site-packages/numpy*")), "what the driver has is not installed again"


@pytest.mark.slow
def test_it_is_made_once_and_again_where_it_was_cut_short_or_has_lost_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = small_lock(tmp_path / "envs/small.txt", "einops", of="deepspeed")
    first = overlay.make(lock).resolve()
    with monkeypatch.context() as offline:  # nothing is fetched the second time
        offline.setenv("PIP_NO_INDEX", "1")
        offline.setenv("PIP_FIND_LINKS", "/nowhere")
        assert overlay.make(lock).resolve() == first
    assert "is there" in capsys.readouterr().out
    (first / versioned.MARKER).unlink()
    with pytest.raises(UserError, match=r"no environment at .*forcerun environment"):
        node.interpreter(asked(lock), tmp_path)
    second = overlay.make(lock).resolve()
    assert second != first
    (versioned.site_packages(second) / "einops" / "__init__.py").unlink()
    third = overlay.make(lock).resolve()
    assert third != second
    assert (versioned.site_packages(third) / "einops" / "__init__.py").exists()


@pytest.mark.slow
def test_what_cannot_be_fetched_leaves_nothing(tmp_path: Path, own_cache: Path, monkeypatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(UserError, match="einops"):
        overlay.make(small_lock(tmp_path / "envs/small.txt", "einops", of="deepspeed"))
    assert [path for path in (own_cache / "environments").iterdir() if path.suffix != ".held"] == []


SETUP = """
from setuptools import Extension, setup
setup(name="quick", version="1.0", ext_modules=[Extension("quick", ["quick.c"])])
"""
SOURCE = """
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "quick", 0, -1, 0};
PyMODINIT_FUNC PyInit_quick(void) { PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "number", NUMBER); return made; }
"""
QUICK = Recipe(
    package="quick",
    tried="import quick; assert quick.number == 7",
    programs={"g++": "g++"},
    variables={"CFLAGS": "-DNUMBER=7"},
)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stack whose one package has a source and no wheel: its lock. pip finds the source in a folder."""
    folder = tmp_path / "sources"
    source = folder / "quick-1.0"
    source.mkdir(parents=True)
    (source / "setup.py").write_text(SETUP)
    (source / "quick.c").write_text(SOURCE)
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: quick\nVersion: 1.0\n")
    subprocess.run(["tar", "czf", "quick-1.0.tar.gz", "quick-1.0"], cwd=folder, check=True)
    shutil.rmtree(source)
    digest = hashlib.sha256((folder / "quick-1.0.tar.gz").read_bytes()).hexdigest()
    lock = tmp_path / "envs" / "quickly.txt"
    lock.parent.mkdir()
    lock.write_text(Pin("quick", "1.0", hashes=(f"sha256:{digest}",)).lines())
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(RECIPES, "quick", QUICK)
    return lock


FOR_GPUS = replace(QUICK, tried="import quick", variables={}, cuda_variables={"CFLAGS": "-DNUMBER={capabilities}"})


def a_cuda(folder: Path, monkeypatch: pytest.MonkeyPatch, *, nvcc: str, torch: str) -> None:
    """A stand-in for nvcc of that CUDA first on the PATH, which only tells its version, and a torch of that CUDA."""
    monkeypatch.setitem(RECIPES, "quick", FOR_GPUS)
    program = folder / "cuda" / "bin" / "nvcc"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {nvcc}, V{nvcc}.88'\n")
    program.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    its = {"about": [torch], "cuda": torch, "nccl": "/env/nvidia/nccl"}
    monkeypatch.setattr(built, "_torch_of", lambda python: its)


@pytest.mark.slow
def test_a_cuda_build_is_for_the_gpus_that_are_named(quick: Path, own_cache: Path, monkeypatch) -> None:
    a_cuda(quick.parent, monkeypatch, nvcc="13.0", torch="13.0")
    (pin,) = read(quick)
    with zipfile.ZipFile(built.wheel(pin, Path(sys.executable), "cuda", "9.0+PTX")) as archive:
        archive.extractall(own_cache / "there")
    told = [sys.executable, "-c", "import quick; print(quick.number)"]
    done = subprocess.run(told, cwd=own_cache / "there", capture_output=True, text=True, check=True)
    assert done.stdout == "90\n"


def test_an_nvcc_of_another_version_is_told_before_anything_is_built(quick: Path, own_cache: Path, monkeypatch) -> None:
    a_cuda(quick.parent, monkeypatch, nvcc="12.9", torch="13.0")
    (pin,) = read(quick)
    told = r"quick has to be compiled here, and nvcc is of CUDA 12.9 \(.*/cuda/bin/nvcc\), torch of CUDA 13.0: load"
    with pytest.raises(UserError, match=told):
        built.wheel(pin, Path(sys.executable), "cuda", "9.0")
    assert not (own_cache / "built").exists()


def test_deepspeed_and_horovod_are_told_the_gpus_and_torchs_own_nccl() -> None:
    told = {"arch_list": "8.0;9.0", "capabilities": "80,90", "nccl": "/env/nvidia/nccl"}
    assert RECIPES["deepspeed"].environment("cuda", told)["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"
    horovod = RECIPES["horovod"].environment("cuda", told)
    assert (horovod["HOROVOD_NCCL_LINK"], horovod["HOROVOD_NCCL_HOME"]) == ("SHARED", "/env/nvidia/nccl")
    assert horovod["HOROVOD_BUILD_CUDA_CC_LIST"] == "80,90"
    assert "HOROVOD_NCCL_HOME" not in RECIPES["horovod"].environment("cuda", told | {"nccl": ""})
    assert not {"HOROVOD_NCCL_LINK", "TORCH_CUDA_ARCH_LIST"} & set(RECIPES["horovod"].environment("cpu", told))


def test_without_a_package_of_the_drivers_it_is_another_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update of the driver's environment takes packages away, and the stack had them from there alone."""
    lock, there = ENVS / "lightning.txt", overlay.distributions
    before = overlay.place(lock)
    monkeypatch.setattr(overlay, "distributions", lambda **of: [] if of["name"] == "numpy" else there(**of))
    assert overlay.place(lock) != before


@pytest.mark.slow
def test_what_was_built_and_cannot_be_used_or_could_not_be_built_is_not_kept(
    quick: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each further try would take it, whatever the user has mended meanwhile. A file of that name is not tried."""
    quick.with_name("quick.py").write_text("nothing = 1")
    monkeypatch.chdir(quick.parent)
    monkeypatch.setitem(RECIPES, "quick", replace(QUICK, tried="import quick; quick.nothing"))
    for why in ("AttributeError: .*nothing", ".*HASHES"):
        with pytest.raises(UserError, match=rf"quick==1\.0 could not be built on node \S+: {why}"):
            overlay.make(quick)
        assert not overlay.place(quick).exists()  # type: ignore[union-attr]
        assert not list(own_cache.glob("built/quick-*/*.whl"))
        quick.write_text(quick.read_text().replace("sha256:", "sha256:0")[:-2] + "\n")  # another hash than the lock's


def test_an_interrupted_build_ends_its_compilers(tmp_path: Path) -> None:
    """What a build has started would go on for minutes, on a login node perhaps."""
    compiling = ["bash", "-c", "sleep 600 & echo $! > pid; wait"]
    # In the background of a script, SIGINT is ignored.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    place = "from pathlib import Path; from relay.environments.kept import Build; place = Path()"
    program = f"{heeds}; {place}; Build('quick==1.0', place, place / 'log').run({compiling})"
    building = subprocess.Popen(**python(program), cwd=tmp_path, stderr=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    until(lambda: pid.exists() and pid.read_text().endswith("\n"), "it compiles")
    building.send_signal(signal.SIGINT)
    assert building.wait(LONGEST_SECONDS) == -signal.SIGINT
    until(lambda: stat_fields(int(pid.read_text())) is None, "the compiler has ended")
