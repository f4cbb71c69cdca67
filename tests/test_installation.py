"""What a newcomer relies on when installing: exact locks, the right build of torch, and installations from nothing."""

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from packaging.requirements import Requirement

import bootstrap
import bootstrap_pip
from living import LONGEST_SECONDS
from plans import ROOT
from relay.environments.locks import exactly, read
from small_wheels import simple_index, write_wheel

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
    for said, seen in (("No devices found'; exit 6 #", False), ("GPU 0: NVIDIA H200 (UUID: GPU-0)", True)):
        nvidia_smi.write_text(f"#!/bin/sh\necho '{said}'\n", encoding="utf-8")
        nvidia_smi.chmod(0o755)
        assert bootstrap.has_nvidia_gpu(devices) is seen


INSTALLED = {"locks": {"torch.txt": "a", "driver.txt": "b"}, "device": "cpu", "build": "cpu", "python": "3.11"}
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


def test_an_environment_that_lost_a_file_counts_as_none(tmp_path: Path) -> None:
    """Scratch disks delete old files one by one, and leave the folders."""
    assert not bootstrap.usable({}, WANTED, "auto")
    packages = tmp_path / "lib/python3.11/site-packages"
    (about := packages / "torch-2.13.0.dist-info").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for path in (python := tmp_path / "bin/python", tmp_path / "pyvenv.cfg", packages / "torch.py", about / "METADATA"):
        path.write_text("abc")
    (about / "RECORD").write_text(
        "torch.py,sha256=x,3\ntorch-2.13.0.dist-info/METADATA,,3\n../../../bin/python,,9\n__pycache__/torch.pyc,,\n"
    )
    stamp = bootstrap.Stamp(tmp_path)
    assert stamp.read() == {}  # not finished
    stamp.write(INSTALLED)
    for path in (about / "METADATA", packages / "torch.py", about / "RECORD", python):
        assert bootstrap.usable(stamp.read(), WANTED, "auto")
        path.rename(tmp_path / "deleted")
        assert stamp.read() == {}, path
        (tmp_path / "deleted").rename(path)
    (packages / "torch.py").write_text("edited")
    assert bootstrap.usable(stamp.read(), WANTED, "auto")


def test_who_may_not_change_the_environment_of_a_shared_checkout_uses_it(tmp_path: Path, monkeypatch, capsys) -> None:
    installed = INSTALLED | {"locks": bootstrap.lock_hashes(False), "python": "{}.{}".format(*sys.version_info[:2])}
    monkeypatch.setattr(bootstrap, "only_one", Mock(side_effect=PermissionError(errno.EACCES, "no", "x.held/lock")))
    monkeypatch.setattr(bootstrap.Stamp, "read", lambda _: installed)
    monkeypatch.setattr(sys, "argv", ["bootstrap.py", "--venv", str(tmp_path), "--torch", "cpu"])
    bootstrap.main()
    assert capsys.readouterr().out.endswith("is up to date\n")
    installed.clear()
    with pytest.raises(SystemExit, match=r"held/lock: you may not write there; if this checkout is somebody else's, "):
        bootstrap.main()


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
    plugins = sorted(path.name for path in (ROOT / "workflow/plugins").iterdir())
    assert told(python, "-P", "-c", found).split() == plugins
    # A copy of the workflow, which a call's jobs have, runs its own code.
    shutil.copytree(checkout / "scripts", copy / "scripts")
    (copy / "scripts/relay/commands/__init__.py").write_text("def main(): print(__file__)")
    assert told(python, copy / "scripts/main.py") == f"{copy}/scripts/relay/commands/__init__.py\n"
    whole = subprocess.run([*pip, checkout.as_uri()], cwd=tmp_path, env=own, capture_output=True, text=True)
    assert "run from its checkout: pip install -e ." in whole.stderr


def test_where_the_network_goes_away_it_is_named_beside_what_pip_lacks(tmp_path: Path, monkeypatch) -> None:
    """As where pip's configuration also names a folder of wheels: pip then says only what that folder lacks."""
    said = "WARNING: Retrying after connection broken by 'NewConnectionError()': /simple/a/\nERROR: No matching a==2\n"
    ended = subprocess.CompletedProcess([], 1, stdout=said)
    monkeypatch.setattr(bootstrap_pip, "run_pip", lambda *_, **__: ended)
    with pytest.raises(bootstrap_pip.InstallError, match=r"(?s)No matching a==2\n.*index did not answer; connect"):
        bootstrap_pip.pip_install(tmp_path, "a==2")


# Installations from nothing, by pip, from indexes of the test's own: small wheels under the real ones' names.
#
# The project's own locks are installed by `make test` itself; here it is shown which build of torch comes from where,
# and what happens when something goes wrong.


TORCH = {"torch": "2.13.0", "torchvision": "0.28.0"}
REGISTRYS = TORCH | {"driver-thing": "1.0"}
if sys.platform == "linux":  # elsewhere the registry's build has no CUDA
    REGISTRYS["nvidia-thing"] = "13.0"


class Project:
    """A checkout with locks of the small wheels, beside the registry and an index of CPU builds as PyTorch's own."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = folder / "project", folder
        (self.root / "envs").mkdir(parents=True)
        shutil.copytree(ROOT / "scripts", self.root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self.root)
        both = [self.offered(name, version, "", "+cpu") for name, version in TORCH.items()]
        self.lock("torch.txt", *both)
        self.lock("torch-cuda.txt", self.offered("nvidia-thing", "13.0", "", marker=" ; sys_platform == 'linux'"))
        self.lock("driver.txt", self.offered("driver-thing", "1.0", ""))
        simple_index(folder / "registry")
        simple_index(folder / "cpu")

    def offered(self, name: str, version: str, *builds: str, marker: str = "") -> str:
        """Offer a package in these builds, and return a lock's entry for all of them."""
        wheels = [write_wheel(self.folder / (build[1:] or "registry"), name, version + build) for build in builds]
        hashes = [f" \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" for wheel in wheels]
        return f"{name}=={version}{marker}{''.join(hashes)}\n"

    def lock(self, file: str, *entries: str) -> None:
        (self.root / "envs" / file).write_text("".join(entries), encoding="utf-8")

    def install(self, *options: str, torch: str = "cpu") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/bootstrap.py", "--torch", torch, "--network-seconds", "60", *options]
        command += ["--torch-index", (self.folder / "cpu").as_uri()]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=LONGEST_SECONDS)

    def packages(self) -> dict[str, str]:
        """What pip says is installed; pip, setuptools and this project aside."""
        command = [str(self.root / ".venv/bin/python"), "-m", "pip", "list", "--format=json"]
        aside = ("pip", "setuptools", "torch-relay")
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return {p["name"].replace("_", "-"): p["version"] for p in found if p["name"] not in aside}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """With a configuration of pip that knows the registry alone, whatever this machine's says."""
    made = Project(tmp_path)
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    own = {"CONFIG_FILE": os.devnull, "INDEX_URL": (made.folder / "registry").as_uri()}
    for name, value in (own | {"NO_CACHE_DIR": "1", "RETRIES": "0"}).items():
        monkeypatch.setenv(f"PIP_{name}", value)
    return made


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def at(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}/simple"


@pytest.mark.slow
def test_without_a_network_all_is_kept(project: Project, mute: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = project.root / ".venv" / "torch-relay.json"
    kept.parent.mkdir()
    kept.write_text("{}", encoding="utf-8")
    monkeypatch.setenv("PIP_INDEX_URL", at(mute))
    result = project.install("--network-seconds", "2")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Installation stopped: pip's package index does not answer within 2 s")
    assert line.endswith("or give pip a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL)")
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


@pytest.mark.slow
def test_what_a_killed_installation_left_is_waited_for_and_repaired(project: Project, mute: socket.socket) -> None:
    """It is killed outright while its pip waits for an answer, so that this pip outlives it."""
    command = [sys.executable, "scripts/bootstrap.py", "--torch", "cuda"]
    with subprocess.Popen(command, cwd=project.root, env=os.environ | {"PIP_INDEX_URL": at(mute)}) as begun:
        asked, _ = mute.accept()
        begun.kill()
    release = threading.Timer(2, lambda: (mute.close(), asked.close()))
    release.start()
    after = project.install(torch="cuda")
    release.join()
    assert after.returncode == 0, after.stderr
    assert re.match(r"environment: another process \(process \d+ on \S+\) is at work on \S+/\.venv; ", after.stderr)
    assert project.packages() == REGISTRYS


@pytest.mark.slow
def test_pips_settings_lead_nothing_elsewhere(project: Project, tmp_path: Path, monkeypatch) -> None:
    """Clusters set some of them for users who install into their homes."""
    configuration = tmp_path / "pip.conf"
    places = "".join(f"{name} = {tmp_path}/{name}\n" for name in ("target", "prefix", "root"))
    switches = "[global]\nquiet = 2\n[install]\nuser = true\nrequire-virtualenv = true\n"
    configuration.write_text(switches + places, encoding="utf-8")
    elsewhere = {"TARGET": str(tmp_path / "target"), "PREFIX": str(tmp_path / "prefix"), "DRY_RUN": "1"}
    elsewhere |= {"CONFIG_FILE": str(configuration), "NO_BINARY": ":all:", "NO_DEPS": "1", "PYTHON": "/usr/bin/python3"}
    with monkeypatch.context() as cluster:
        for name, value in elsewhere.items():
            cluster.setenv(f"PIP_{name}", value)
        cluster.setenv("PYTHONSAFEPATH", "1")
        done = project.install(torch="cuda")
    assert done.returncode == 0, done.stderr
    assert project.packages() == REGISTRYS
