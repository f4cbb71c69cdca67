"""Installations from nothing, by pip, from indexes of the test's own: small wheels under the real ones' names.

The project's own locks are installed by `make test` itself; here it is shown which build of torch comes from
where, and what happens when something goes wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from living import LONGEST_SECONDS
from plans import ROOT
from small_wheels import simple_index, write_wheel

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
        simple_index(self.index("registry"))
        simple_index(self.index("cpu"))

    def index(self, name: str) -> Path:
        return self.folder / name

    def offered(self, name: str, version: str, *builds: str, marker: str = "") -> str:
        """Offer a package in these builds, and return a lock's entry for all of them."""
        wheels = [write_wheel(self.index(build[1:] or "registry"), name, version + build) for build in builds]
        hashes = [f" \\\n    --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}" for wheel in wheels]
        return f"{name}=={version}{marker}{''.join(hashes)}\n"

    def lock(self, file: str, *entries: str) -> None:
        (self.root / "envs" / file).write_text("".join(entries), encoding="utf-8")

    def install(self, *options: str, torch: str = "cpu") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/bootstrap.py", "--torch", torch, "--network-seconds", "60", *options]
        command += ["--torch-index", self.index("cpu").as_uri()]
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
    own = {"CONFIG_FILE": os.devnull, "INDEX_URL": made.index("registry").as_uri(), "NO_CACHE_DIR": "1", "RETRIES": "0"}
    for name, value in own.items():
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
def test_without_a_network_it_stops_before_anything_is_torn_down(
    project: Project, mute: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = project.root / ".venv" / "torch-relay.json"
    kept.parent.mkdir()
    kept.write_text("{}", encoding="utf-8")
    monkeypatch.setenv("PIP_INDEX_URL", at(mute))
    result = project.install("--network-seconds", "2")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Installation stopped: pip's package index does not answer within 2 s")
    assert line.endswith(
        "connect this machine to the network, or give pip a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL)"
    )
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


@pytest.mark.slow
def test_what_a_killed_installation_left_running_is_waited_for_and_then_repaired(
    project: Project, mute: socket.socket
) -> None:
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
    assert after.stdout.startswith("Waiting for another installation")
    assert project.packages() == REGISTRYS


@pytest.mark.slow
def test_settings_of_pip_that_say_what_it_does_lead_no_package_elsewhere(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clusters set some of them for users who install into their homes."""
    configuration = tmp_path / "pip.conf"
    configuration.write_text(
        "[global]\nquiet = 2\n[install]\nuser = true\nrequire-virtualenv = true\n", encoding="utf-8"
    )
    elsewhere = {"TARGET": str(tmp_path / "target"), "PREFIX": str(tmp_path / "prefix"), "DRY_RUN": "1"}
    elsewhere |= {"CONFIG_FILE": str(configuration), "NO_BINARY": ":all:", "NO_DEPS": "1", "PYTHON": "/usr/bin/python3"}
    with monkeypatch.context() as cluster:
        for name, value in elsewhere.items():
            cluster.setenv(f"PIP_{name}", value)
        cluster.setenv("PYTHONSAFEPATH", "1")
        done = project.install(torch="cuda")
    assert done.returncode == 0, done.stderr
    assert project.packages() == REGISTRYS
