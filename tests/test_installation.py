"""What a newcomer relies on when installing: locks that are exact and agree, and the right build of torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import bootstrap
import bootstrap_pip
from living import LONGEST_SECONDS
from relay.environments.locks import exactly, read

ROOT = Path(__file__).resolve().parent.parent
BOOTSTRAP = ROOT / "scripts" / "bootstrap.py"


# The choice of a build


def test_one_build_is_pinned_and_all_others_are_excluded() -> None:
    lock = read(ROOT / "envs" / "torch.txt")
    cpu = Requirement(bootstrap.one_of(lock, "torch", "+cpu")[1].split()[0])
    assert cpu.specifier.contains("2.13.0+cpu")
    assert not cpu.specifier.contains("2.13.0")
    exact = exactly(lock)
    for name in ("torch===2.13.0", "torchvision===0.28.0"):
        assert f"\n{name} \\" in exact
    assert not Requirement("torch===2.13.0").specifier.contains("2.13.0+cpu")
    assert "===" in exact
    assert [line for line in exact.splitlines() if "==" in line.split(";")[0].replace("===", "")] == []


def test_an_nvidia_gpu_is_seen_by_its_device_or_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices, programs = tmp_path / "dev", tmp_path / "bin"
    devices.mkdir()
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    (devices / "nvidiactl").touch()  # the driver alone is no GPU
    assert not bootstrap.has_nvidia_gpu(devices)
    (devices / "nvidia0").touch()
    assert bootstrap.has_nvidia_gpu(devices)
    (devices / "nvidia0").unlink()
    nvidia_smi = programs / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho 'No devices found'\nexit 6\n", encoding="utf-8")
    nvidia_smi.chmod(0o755)
    assert not bootstrap.has_nvidia_gpu(devices)
    nvidia_smi.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H200 (UUID: GPU-0)'\n", encoding="utf-8")
    assert bootstrap.has_nvidia_gpu(devices)


INSTALLED = {
    "locks": {"torch.txt": "a", "driver.txt": "b"},
    "device": "cpu",
    "build": "cpu",
    "python": "3.11",
}
WANTED = {"locks": {"torch.txt": "a", "driver.txt": "b"}, "device": "cpu", "python": "3.11"}


@pytest.mark.parametrize(
    ("installed", "wanted", "torch", "kept"),
    [
        ({}, {"locks": {"torch.txt": "a", "driver.txt": "b", "dev.txt": "c"}}, "auto", True),  # dev is added to it
        ({}, {"locks": {"torch.txt": "a", "driver.txt": "changed"}}, "auto", False),
        ({}, {"python": "3.12"}, "auto", False),
        ({"device": "cuda", "build": "registry"}, {}, "cpu", False),
        ({"device": "cpu", "build": "registry"}, {}, "cpu", True),  # no other build could be had
    ],
)
def test_an_environment_is_kept_while_it_serves(installed: dict, wanted: dict, torch: str, kept: bool) -> None:
    assert bootstrap.usable({**INSTALLED, **installed}, {**WANTED, **wanted}, torch) is kept


def test_an_environment_that_lost_a_package_counts_as_none(tmp_path: Path) -> None:
    assert not bootstrap.usable({}, WANTED, "auto")
    python, package = (
        tmp_path / "bin/python",
        tmp_path / "lib/python3.11/site-packages/torch-2.13.0.dist-info",
    )
    python.parent.mkdir()
    python.touch()
    package.mkdir(parents=True)
    stamp = bootstrap.Stamp(tmp_path)
    assert stamp.read() == {}  # not finished
    stamp.write(INSTALLED)
    assert bootstrap.usable(stamp.read(), WANTED, "auto")
    package.rename(package.with_name("torch-2.14.0.dist-info"))
    assert stamp.read() == {}


@pytest.mark.slow
def test_another_folder_of_the_user_is_never_emptied(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work", encoding="utf-8")
    command = [sys.executable, str(BOOTSTRAP), "--venv", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert result.returncode == 1
    assert "was not made by `make install`: remove it, or choose another place with --venv" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# The project itself


@pytest.mark.slow
def test_a_checkout_is_installed_by_pip_without_a_network_and_without_a_trace_in_it(tmp_path: Path) -> None:
    checkout, environment, copy = (tmp_path / name for name in ("a [check]out", "venv", "call"))
    for name in ("scripts", "workflow/plugins"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    before = sorted(checkout.rglob("*"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python, relay = environment / "bin/python", environment / "bin/relay"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    own = {"PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def told(*words: str | Path) -> str:
        return subprocess.run(words, cwd=tmp_path, env=own, check=True, capture_output=True, text=True).stdout

    told(*pip, "--editable", checkout.as_uri())
    assert sorted(checkout.rglob("*")) == before
    assert told(relay, "--help").startswith("usage: relay COMMAND")
    found = "import pkgutil; print(*(name for _, name, _ in pkgutil.iter_modules() if name.startswith('snakemake')))"
    assert told(python, "-P", "-c", found).split() == sorted(
        path.name for path in (ROOT / "workflow/plugins").iterdir()
    )
    # A copy of the workflow, which a call's jobs have, runs its own code.
    shutil.copytree(checkout / "scripts", copy / "scripts")
    (copy / "scripts/relay/commands/__init__.py").write_text("def main(): print(__file__)")
    assert told(python, copy / "scripts/main.py") == f"{copy}/scripts/relay/commands/__init__.py\n"
    whole = subprocess.run([*pip, checkout.as_uri()], cwd=tmp_path, env=own, capture_output=True, text=True)
    assert "run from its checkout: pip install -e ." in whole.stderr


def test_where_the_network_goes_away_it_is_named_beside_what_pip_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where pip's configuration also names a folder of wheels: pip then says only what that folder lacks."""
    said = "WARNING: Retrying after connection broken by 'NewConnectionError()': /simple/a/\nERROR: No matching a==2\n"
    ended = subprocess.CompletedProcess([], 1, stdout=said)
    monkeypatch.setattr(bootstrap_pip, "run_pip", lambda *_, **__: ended)
    with pytest.raises(bootstrap_pip.InstallError, match=r"(?s)No matching a==2\n.*index did not answer; connect"):
        bootstrap_pip.pip_install(tmp_path, "a==2")
