"""Sets up the project's virtual environment from the locks in `envs/`, every file checked against its hash.

    python3 scripts/bootstrap.py [--dev] [--venv .venv] [--torch auto|cpu|cuda]

Needs Python 3.11 to 3.13 and nothing else. pip's own configuration (mirrors, proxies, certificates) is
respected. Without an NVIDIA GPU the CPU build of torch is looked for first in that configuration, then at
PyTorch's own index of CPU builds; only when neither has it is the registry's build taken, which on Linux is
the CUDA one. A second call with nothing changed does nothing; after a change of the locks, or a fault
half-way, the environment is made anew.
"""

import argparse
import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# This file parses on any Python 3, so that an old one gets this line and not a traceback. Nor a newer one: a
# locked package (immutables) has no wheel for 3.14 yet, and a newcomer should need no compiler.
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(
        "Torch Relay needs Python 3.11, 3.12 or 3.13, and this is Python {}.{} ({}): name another one, as in `make "
        "install PYTHON=python3.12` (clusters: config/sites/README.md)".format(*sys.version_info[:2], sys.executable)
    )

os.umask(os.umask(0o077) | 0o022)  # nobody else may change what you run
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))  # PYTHONSAFEPATH takes it away
from bootstrap_pip import InstallError, NoSuchBuild, check_network, pip_install, pip_of, run_pip, say
from editable import files
from relay.base.errors import UserError
from relay.environments.locks import Pin, exactly, read
from relay.environments.pip import index_offers
from relay.environments.versioned import has_packages, only_one, site_packages
from relay.spec import cuda

PROBE_SECONDS = 5


def has_nvidia_gpu(devices: Path = Path("/dev")) -> bool:
    """Whether an NVIDIA GPU is here: its device node, or `nvidia-smi` that lists one (WSL has no node)."""
    if any(re.fullmatch(r"nvidia\d+", path.name) for path in devices.glob("nvidia*")):
        return True
    nvidia_smi = shutil.which("nvidia-smi")
    if nvidia_smi is None:
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        listing = subprocess.run([nvidia_smi, "-L"], check=False, capture_output=True, text=True, timeout=20)
        return listing.returncode == 0 and "GPU " in listing.stdout
    return False


class Stamp:
    """What the environment was last made from, kept inside it; absent or empty while it is being made."""

    def __init__(self, venv: Path) -> None:
        self.venv = venv
        self.path = venv / "torch-relay.json"

    def read(self) -> dict[str, Any]:
        """The last complete installation, or {} if there is none or files of its packages are gone."""
        try:
            stamp = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        whole = stamp.keys() >= {"locks", "device", "build", "python", "packages"}
        return stamp if whole and has_packages(self.venv, stamp["packages"]) else {}

    def packages(self) -> set[str]:
        """Names and versions as the installed packages' folders show them."""
        names = {path.name for path in site_packages(self.venv).glob("*.dist-info")}
        return {name for name in names if not name.startswith("torch_relay-")}  # `add_own` looks after that

    def write(self, content: dict[str, Any]) -> None:
        content = {**content, "packages": sorted(self.packages())}
        self.path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def lock_hashes(dev: bool) -> dict[str, str]:
    """SHA-256 of each lock that the installation uses. Raises InstallError for one that is missing."""
    names = ["torch.txt", "torch-cuda.txt", "driver.txt", *(["dev.txt"] if dev else [])]
    try:
        return {name: hashlib.sha256((ROOT / "envs" / name).read_bytes()).hexdigest() for name in names}
    except FileNotFoundError as error:
        raise InstallError(f"the lock {error.filename} is missing: restore it, or run `make lock`") from None


def usable(stamp: dict[str, Any], wanted: dict[str, Any], torch: str) -> bool:
    """Whether what is installed can be kept: the same Python, the same locks, and a torch that will do.

    `torch` is what was asked for. Under `auto` the registry's build does without a GPU too: a login node
    without one must not tear down what a GPU node has installed.
    """
    if not stamp:
        return False
    same_locks = all(wanted["locks"].get(name, digest) == digest for name, digest in stamp["locks"].items())
    same_torch = stamp["device"] == wanted["device"] or (torch == "auto" and stamp["build"] == "registry")
    return same_locks and same_torch and stamp["python"] == wanted["python"]


def clear(stamp: Stamp) -> None:
    """Empties the environment's folder but for its mark, by which the next call knows it after a kill.

    Raises InstallError for a folder without that mark: what it holds is somebody else's.
    """
    venv = stamp.venv
    if venv.is_dir() and any(venv.iterdir()) and not stamp.path.exists():
        raise InstallError(f"{venv} was not made by `make install`: remove it, or choose another place with --venv")
    venv.mkdir(parents=True, exist_ok=True)
    stamp.path.write_text("{}", encoding="utf-8")
    for child in venv.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child != stamp.path:
            child.unlink()


def create(venv: Path) -> None:
    """Makes a virtual environment with pip alone. Raises InstallError if this Python cannot."""
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        remedy = "on Debian or Ubuntu: apt-get install python3-venv"
        raise InstallError(f"this Python ({sys.executable}) lacks its venv module; {remedy}")
    command = [sys.executable, "-I", "-m", "venv", str(venv)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, close_fds=False)
    if done.returncode:
        raise InstallError(f"the virtual environment could not be made:\n{done.stdout}{done.stderr}".rstrip())


def add_own(venv: Path) -> None:
    """Has the environment import this checkout's `relay`, find its plugins of Snakemake, and have its commands.

    Does nothing where all of it is there. Raises InstallError with pip's own words if it fails.
    """
    text_by_path = {site_packages(venv) / name: text for name, text in files().items()}
    record = [*text_by_path][-1]  # pip writes it last, with another content
    last = (record, venv / "bin/relay", venv / "bin/relay-chain")
    del text_by_path[record]
    there = all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in text_by_path.items())
    if there and all(path.is_file() for path in last):
        return
    # Not by the user's configuration, which may want hashes or another folder.
    how = ["--no-deps", "--no-index", "--no-build-isolation"]
    result = run_pip(pip_of(venv), "install", *how, "--editable", ROOT.as_uri(), configured=False)
    if result.returncode:
        raise InstallError(f"pip could not install this checkout:\n{result.stdout}".rstrip())


@contextlib.contextmanager
def held(venv: Path) -> Iterator[Path | None]:
    """One call at a time changes the environment. Yields what keeps this user from it; None where nothing does.

    It is somebody else's folder, or the lock that another user of a shared checkout has made.
    """
    changed = venv if venv.exists() else venv.parent
    with contextlib.ExitStack() as stack:
        refused = None if os.access(changed, os.W_OK | os.X_OK) else changed
        if not refused:
            try:  # pip inherits the lock, and is waited for too where it outlives this program (`kill -9`)
                os.set_inheritable(stack.enter_context(only_one(venv)), True)
            except PermissionError as error:
                refused = Path(error.filename or changed)
        yield refused


def install_torch(venv: Path, lock: list[Pin], device: str, index: str) -> tuple[str, list[Pin]]:
    """Installs the CPU build of torch if it is wanted and offered.

    Returns the build to use, cpu or registry, and what of the lock is left to install. The registry's build is left to
    the step that installs everything that torch needs.
    """
    if device == "cuda":
        return "registry", lock
    version, torch = one_of(lock, "torch", "+cpu")
    source: tuple[str, ...] = ()
    try:
        pip_install(venv, torch, "--no-deps")
    except NoSuchBuild:
        say(f"      no torch {version} where pip's own configuration looks: passed over")
        if not index_offers(index, "torch", version, pip=pip_of(venv), seconds=PROBE_SECONDS):
            say(f"      no torch {version} at {index}, or it cannot be reached: passed over")
            if sys.platform == "linux":
                say("      Only the registry's build of torch is left. It brings CUDA: gigabytes to download.")
            return "registry", lock
        say(f"      from {index}")
        source = ("--extra-index-url", index)
        pip_install(venv, torch, "--no-deps", *source)
    done = ["torch"]
    # Not every Python has a CPU build of torchvision; the registry's does beside the CPU build of torch.
    with contextlib.suppress(NoSuchBuild):
        pip_install(venv, one_of(lock, "torchvision", "+cpu")[1], "--no-deps", *source)
        done.append("torchvision")
    return "cpu", [pin for pin in lock if pin.name not in done]


def one_of(lock: list[Pin], name: str, label: str) -> tuple[str, str]:
    """A package's version with a local label, and what pip is asked for it. Raises InstallError without it."""
    for pin in lock:
        if pin.name == name:
            return f"{pin.version}{label}", pin.lines("===", label)
    raise InstallError(f"envs/torch.txt names no {name}: restore it, or run `make lock`")


def install(venv: Path, dev: bool, torch: str, index: str, network_seconds: float, refused: Path | None) -> None:
    """Brings the environment in step with the locks, doing only what is needed. Raises InstallError.

    `refused`: what keeps this user from changing it.
    """
    device = torch if torch != "auto" else "cuda" if has_nvidia_gpu() else "cpu"
    wanted: dict[str, Any] = {"locks": lock_hashes(dev), "device": device}
    wanted["python"] = "{}.{}".format(*sys.version_info[:2])
    stamp = Stamp(venv)
    installed = stamp.read()
    keep = usable(installed, wanted, torch)
    shown = os.path.relpath(venv)
    if keep and wanted["locks"].keys() <= installed["locks"].keys():
        if not refused:  # somebody else's is used as it is
            add_own(venv)
        say(f"{shown} is up to date")
        return
    started = time.monotonic()
    locks = {name: read(ROOT / "envs" / name) for name in wanted["locks"]}
    say(f"Installing Torch Relay into {shown} (Python {wanted['python']}); this takes some minutes")
    # Before anything else: what is there is not torn down where nothing new can be had.
    if refused:
        remedy = "if this checkout is somebody else's, make one of your own with `git clone`"
        raise InstallError(f"{refused}: you may not write there; {remedy}; or choose another place with --venv")
    check_network(venv, locks["driver.txt"][0].name, network_seconds)
    if keep:
        build, device = installed["build"], installed["device"]
    else:
        say("[1/4] an empty virtual environment")
        clear(stamp)
        create(venv)
        say("[2/4] torch for " + ("an NVIDIA GPU" if device == "cuda" else "the CPU (no NVIDIA GPU in use)"))
        build, rest = install_torch(venv, locks["torch.txt"], device, index)
        say("[3/4] what a training job needs beside it")
        # Torch itself where it is still missing, and CUDA's libraries where its build needs them.
        pip_install(venv, exactly(rest + (locks["torch-cuda.txt"] if build == "registry" else [])))
    say("[4/4] Snakemake, the report's packages" + (", and what checks the project" if dev else ""))
    pip_install(venv, exactly(locks["driver.txt"] + locks.get("dev.txt", [])))
    stamp.write({**wanted, "device": device, "build": build})
    add_own(venv)
    say(f"Installed in {time.monotonic() - started:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="also what tests and checks need")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where (.venv beside the Makefile)")
    parser.add_argument("--torch", choices=("auto", "cpu", "cuda"), default="auto", help="build of torch (auto)")
    parser.add_argument("--torch-index", default=cuda.index("cpu"), metavar="URL", help="index of torch's CPU builds")
    parser.add_argument("--network-seconds", type=float, default=10, help="how long to wait for an index's answer (10)")
    options = parser.parse_args()
    try:
        options.venv.parent.mkdir(parents=True, exist_ok=True)
        with held(options.venv) as refused:
            install(options.venv, options.dev, options.torch, options.torch_index, options.network_seconds, refused)
    except (InstallError, UserError, OSError) as error:
        sys.exit(f"Installation stopped: {error}")
    except KeyboardInterrupt:
        sys.exit("Installation interrupted; the next call starts it anew")


if __name__ == "__main__":
    main()
