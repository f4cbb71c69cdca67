"""Installations from nothing, by pip, from an index served here: small wheels under the real ones' names.

The project's own locks are installed by `make test` itself; here it is shown which build of torch comes from
where, and what happens when something goes wrong.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import bootstrap

SCRIPT = Path(bootstrap.__file__)


def wheel(name: str, version: str) -> bytes:
    """A complete wheel of one module that knows its version."""
    stem = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"__version__ = {version!r}\n",
        f"{stem}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}/RECORD,,\n"
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text.encode())}\n"
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in {**files, f"{stem}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return buffer.getvalue()


SITES = (("torch", "2.13.0"), ("torchvision", "0.28.0"), ("driver_thing", "1.0"))
WHEELS = {
    (name, version): wheel(name, version)
    for name, version in [
        ("torch", "2.13.0"),
        ("torch", "2.13.0+cpu"),
        ("torchvision", "0.28.0"),
        ("torchvision", "0.28.0+cpu"),
        ("nvidia_thing", "13.0"),
        ("driver_thing", "1.0"),
        *((name, f"{version}+computecanada") for name, version in SITES),
    ]
}
REGISTRY = [key for key in WHEELS if "+" not in key[1]]
SITES_BUILDS = [key for key in WHEELS if "+computecanada" in key[1]]
CPU_BUILDS = [key for key in WHEELS if "+cpu" in key[1]]


class Server:
    """Two package indexes: `/registry`, and `/cpu` as PyTorch's own. What they offer can be changed."""

    def __init__(self) -> None:
        self.offers: dict[str, list[tuple[str, str]]] = {"registry": list(REGISTRY), "cpu": list(CPU_BUILDS)}
        self.asked: list[str] = []
        self.serving = threading.Event()
        self.serving.set()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                server.serving.wait(timeout=60)
                index, name, *file = self.path.replace("%2B", "+").strip("/").split("/")
                files = {f"{n}-{v}-py3-none-any.whl": WHEELS[n, v] for n, v in server.offers.get(index, ())}
                if file:
                    body = files.get(file[0], b"")
                else:
                    links = [f for f in files if f.split("-")[0].replace("_", "-") == name]
                    href = "<a href='/{0}/{1}/{2}#sha256={3}'>{2}</a>"
                    body = "".join(
                        href.format(index, name, f, hashlib.sha256(files[f]).hexdigest()) for f in links
                    ).encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Type", "application/octet-stream" if file else "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def url(self, index: str) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/{index}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def pip_of_its_own(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration of pip that knows the registry alone, whatever this machine's says."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url("registry"))
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")


class Project:
    """A checkout with locks of the small wheels."""

    def __init__(self, root: Path, server: Server) -> None:
        self.root, self.server = root, server
        (root / "scripts").mkdir(parents=True)
        (root / "envs").mkdir()
        shutil.copy(SCRIPT, root / "scripts")
        self.lock("torch.txt", "torch==2.13.0", "torchvision==0.28.0")
        self.lock("torch-cuda.txt", "nvidia-thing==13.0 ; sys_platform == 'linux'")
        self.lock("driver.txt", "driver-thing==1.0")

    def lock(self, file: str, *requirements: str) -> None:
        lines = []
        for requirement in requirements:
            name, version = requirement.split(" ")[0].replace("-", "_").split("==")
            builds = [data for key, data in WHEELS.items() if key in ((name, version), (name, f"{version}+cpu"))]
            hashes = "".join(f" \\\n    --hash=sha256:{hashlib.sha256(data).hexdigest()}" for data in builds)
            lines.append(f"{requirement}{hashes}\n")
        (self.root / "envs" / file).write_text("".join(lines), encoding="utf-8")

    def install(self, *options: str, torch: str = "cpu") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "scripts/bootstrap.py", "--torch", torch, *options]
        command += ["--torch-index", self.server.url("cpu")]
        return subprocess.run(command, cwd=self.root, capture_output=True, text=True, timeout=120)

    def installation_that_is_killed(self) -> None:
        """One killed outright while its pip waits for an answer, so that this pip outlives it."""
        self.server.serving.clear()
        with subprocess.Popen([sys.executable, "scripts/bootstrap.py", "--torch", "cuda"], cwd=self.root) as begun:
            deadline = time.monotonic() + 60
            while not self.server.asked and time.monotonic() < deadline:
                time.sleep(0.05)
            begun.kill()
        assert self.server.asked, "pip never asked"

    def packages(self) -> dict[str, str]:
        """What pip says is installed, pip and setuptools aside."""
        command = [str(self.root / ".venv/bin/python"), "-m", "pip", "list", "--format=json"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return {p["name"].replace("_", "-"): p["version"] for p in found if p["name"] not in ("pip", "setuptools")}


@pytest.fixture
def project(tmp_path: Path, server: Server, pip_of_its_own: None) -> Project:
    return Project(tmp_path / "project", server)


CPU_ONLY = {"torch": "2.13.0+cpu", "torchvision": "0.28.0+cpu", "driver-thing": "1.0"}
REGISTRYS = {"torch": "2.13.0", "torchvision": "0.28.0", "driver-thing": "1.0"}
if sys.platform == "linux":  # elsewhere the registry's build has no CUDA
    REGISTRYS["nvidia-thing"] = "13.0"


@pytest.mark.slow
def test_without_a_network_it_stops_before_anything_is_torn_down(project: Project) -> None:
    kept = project.root / ".venv" / "torch-relay.json"
    kept.parent.mkdir()
    kept.write_text("{}", encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes the connection and says nothing
        # Put back by the fixture.
        os.environ["PIP_INDEX_URL"] = f"http://127.0.0.1:{mute.getsockname()[1]}/simple"
        result = project.install("--network-seconds", "2")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("Installation stopped: pip's package index does not answer within 2 s")
    assert line.endswith(
        "connect this machine to the network, or give pip a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL)"
    )
    assert [path.name for path in kept.parent.iterdir()] == [kept.name]


@pytest.mark.long
def test_a_sites_own_builds_do_not_take_the_place_of_the_locked_ones(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Alliance's pip looks into a folder of wheels `+computecanada`, which `==` accepts and a hash refuses."""
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    for name, version in SITES_BUILDS:
        (folder / f"{name}-{version}-py3-none-any.whl").write_bytes(WHEELS[name, version])
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    result = project.install()
    assert result.returncode == 0, result.stderr
    assert project.packages() == CPU_ONLY


@pytest.mark.slow
def test_what_a_killed_installation_left_running_is_waited_for_and_then_repaired(project: Project) -> None:
    project.installation_that_is_killed()
    release = threading.Timer(2, project.server.serving.set)
    release.start()
    after = project.install(torch="cuda")
    release.join()
    assert after.returncode == 0, after.stderr
    assert after.stdout.startswith("Waiting for another installation")
    assert project.packages() == REGISTRYS


@pytest.mark.long
def test_a_wrong_file_is_refused_and_the_next_call_repairs_what_was_left(project: Project) -> None:
    """No other test gives pip a file that is not the locked one."""
    lock = project.root / "envs" / "driver.txt"
    right = lock.read_text(encoding="utf-8")
    lock.write_text(f"driver-thing==1.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    wrong = project.install()
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("Installation stopped: pip could not install this:")
    assert "DO NOT MATCH THE HASHES" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert "driver-thing" not in project.packages()

    lock.write_text(right, encoding="utf-8")
    assert project.install().returncode == 0
    assert project.packages() == CPU_ONLY
    # Broken afterwards.
    shutil.rmtree(next((project.root / ".venv").glob("lib/*/site-packages/torch-*")))
    assert "virtual environment" in project.install().stdout
    assert project.packages() == CPU_ONLY
