"""What `bootstrap.py` asks pip, with the user's own configuration of it: mirrors, proxies, certificates."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay.environments.pip import into, isolated, lacks

# Publishes no wheel: built from source by the locked setuptools. Everything else comes as a wheel.
SOURCE_ONLY = "connection-pool"
NETWORK_REMEDY = "connect this machine to the network, or give pip a proxy (HTTPS_PROXY) or a mirror (PIP_INDEX_URL)"


class InstallError(Exception):
    """The installation cannot go on; the message says why and what to do."""


class NoSuchBuild(InstallError):
    """The sources that were asked do not have the wanted build of torch."""


def say(line: str) -> None:
    print(line, flush=True)


def pip_of(venv: Path) -> list[str]:
    """The command of an environment's pip."""
    return [str(venv / "bin" / "python"), "-P", "-m", "pip"]


def run_pip(
    pip: list[str],
    *arguments: str,
    timeout: float | None = None,
    shown: Callable[[str], None] = lambda line: None,
    configured: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Runs a pip, keeping what it says; `shown` gets each line at once. Raises subprocess.TimeoutExpired.

    With `configured`, the user's files of pip's configuration count.
    """
    command = [*pip, "--disable-pip-version-check", "--no-input", *arguments]
    # Older pips would build the old way, which needs a package that no lock has; newer ones ignore this.
    environment = {**isolated(), "PIP_USE_PEP517": "1"}
    environment |= {} if configured else {"PIP_CONFIG_FILE": os.devnull}
    together: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    together["close_fds"] = False
    if timeout is not None:
        return subprocess.run(command, check=False, env=environment, timeout=timeout, **together)
    with subprocess.Popen(command, env=environment, **together) as running:
        lines = []
        for line in running.stdout or ():
            lines.append(line)
            shown(line)
    return subprocess.CompletedProcess(command, running.returncode, "".join(lines))


def show_progress(line: str) -> None:
    """Tells what takes long of what pip says: files of a megabyte and more, builds, and the installation."""
    match = re.match(r"\s*Downloading \S*?([^/\s]+?)-\d\S* \(([\d.]+ [MG]B)\)", line)
    if match:
        say(f"      downloading {match[1]} ({match[2]})")
    elif line.startswith("Installing collected packages: "):
        count = line.count(",") + 1
        say(f"      installing {count} package{'s' * (count > 1)}")


def pip_install(venv: Path, requirements: str, *options: str) -> None:
    """Installs the text of a requirements file. Raises InstallError with pip's own words if that fails."""
    safety = ["--require-hashes", "--only-binary=:all:", f"--no-binary={SOURCE_ONLY}", "--no-build-isolation"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(requirements)
        file.flush()
        how = ["--progress-bar=off", *into(venv.absolute()), *safety, *options]
        result = run_pip(pip_of(venv), "install", *how, "--requirement", file.name, shown=show_progress)
    if result.returncode:
        kind = NoSuchBuild if any(lacks(name, result.stdout) for name in ("torch", "torchvision")) else InstallError
        fault = re.search(r"(?im)^ *error:", result.stdout)  # what comes before is what has gone well
        said = result.stdout[fault.start() if fault else 0 :].rstrip()
        # pip then names what folders of wheels and further indexes lack.
        broken = "after connection broken by" in result.stdout
        silent = f"\npip's package index did not answer; {NETWORK_REMEDY}" if broken else ""
        raise kind(f"pip could not install this:\n{said}{silent}")


def check_network(venv: Path, name: str, seconds: float) -> None:
    """Raises InstallError, after so many seconds at most, unless pip finds a package of a lock where it looks.

    Without a network pip itself goes on trying for minutes.
    """
    pip = some_pip(venv)
    if pip is None:
        return
    try:
        answer = run_pip(pip, "index", "versions", name, "--retries=0", timeout=seconds)
    except subprocess.TimeoutExpired:
        problem = f"does not answer within {seconds:g} s (a slow one: make install NETWORK_SECONDS=60)"
    else:
        if answer.returncode == 0:
            return
        problem = f"cannot be reached, or has no {name} ({answer.stdout.strip().rpartition(chr(10))[2]})"
    raise InstallError(f"pip's package index {problem}; {NETWORK_REMEDY}")


def some_pip(venv: Path) -> list[str] | None:
    """A pip that is there before the environment is made: the old one's, this Python's, or that which Python brings."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-P", "-m", "pip"]
    if (venv / "bin" / "python").exists():
        return pip_of(venv)
    bundled = importlib.util.find_spec("ensurepip")
    wheels = Path(str(bundled.origin)).parent.glob("_bundled/pip-*.whl") if bundled else iter(())
    return next(([sys.executable, f"{wheel}/pip"] for wheel in wheels), None)
