"""Asks pip, so that the user's own configuration of pip applies: mirrors, folders, proxies, certificates."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.printable import printable
from relay.environments.locks import Pin

LONGEST_SECONDS = 900
PROBE_SECONDS = 15
# Of the user's variables, those that say where pip looks and how it gets there.
WHERE_FROM = re.compile(
    r"PIP_(CONFIG_FILE|(EXTRA_)?INDEX_URL|FIND_LINKS|NO_INDEX|CONSTRAINT|PROXY|(CLIENT_)?CERT|TRUSTED_HOST|KEYRING_PROVIDER"
    r"|(NO_)?CACHE_DIR|(DEFAULT_)?TIMEOUT|(RESUME_)?RETRIES|USE_FEATURE|USE_DEPRECATED|PREFER_BINARY|PRE|ISOLATED)"
)
# What a file of pip's configuration may say as well, and a variable decides: what it does, and how much it tells.
DECIDED = {f"PIP_{name}": "0" for name in ("USER", "DRY_RUN", "REQUIRE_VIRTUALENV", "QUIET", "VERBOSE")}


def program(python: Path | str) -> list[str]:
    """The driver's pip, for a Python, its own or another one. A `pip.py` in the working directory is not taken."""
    other = ["--python", str(python)] if str(python) != sys.executable else []  # which starts pip once more
    return [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", *other]


def environment() -> dict[str, str]:
    """The environment of installers. Of the user's settings those stay that say where files come from.

    What is installed, and into which folder, is on the command line: with PIP_TARGET, PIP_USER or PIP_DRY_RUN an
    environment would be left without its packages.
    """
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    return others | {name: value for name, value in os.environ.items() if WHERE_FROM.fullmatch(name)} | DECIDED


def isolated() -> dict[str, str]:
    """The same where no package of PYTHONPATH may count: pip would call it installed, and leave it out."""
    return {name: value for name, value in environment().items() if not name.startswith("PYTHON")}


def into(environment: Path) -> list[str]:
    """Options of `install` for a virtual environment's folder, whatever a file of pip's configuration says.

    An empty variable would not count against such a file, an empty option does.
    """
    return ["--target", "", "--root", "/", "--prefix", str(environment)]


def complaint(said: Sequence[str]) -> str:
    """pip's error on one line, of the lines that it has said. pip itself hides passwords, but not of each address."""
    lines = [printable(line.strip()) for line in said if not line.startswith("WARNING: Location")]
    error = next((n for n, line in enumerate(lines) if line.startswith("ERROR:")), -1)
    # pip reports a wrong hash over several lines. "from versions:" would list hundreds of them.
    message = " ".join(" ".join(lines[error:]).removeprefix("ERROR:").split()).partition(" To fix this you could")[0]
    message = re.sub(r"^Could not find a version .* ERROR: (?=No matching distribution)", "", message)
    return re.sub(r"\(from versions: [^)]*\)", "", message)[-500:] if "HASHES" not in message else message[:700]


def lacks(name: str, said: str) -> bool:
    """Whether pip's error says that it finds no such build of a package, whose version was asked for with `===`.

    Where a constraints file of the site's names the package as well, pip calls that a conflict of the two.
    """
    return any(f"{words} {name}===" in said for words in ("No matching distribution found for", "Cannot install"))


def would_install(
    requirements: Sequence[str], *, python: Path | str, options: Sequence[str] = (), modules: Sequence[str] = ()
) -> list[tuple[Pin, str]]:
    """The wheels that pip would take for these requirements and all that they need, with their addresses.

    Nothing is installed.

    `modules` are loaded first where this machine has environment modules: on some clusters they say where pip looks.
    Raises UserError with pip's own words where there is no solution.
    """
    with tempfile.TemporaryDirectory(prefix="torch-relay-pip-") as folder:
        report = Path(folder) / "report.json"
        safely = ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--progress-bar=off"]
        command = [*program(python), "install", *safely, "--report", str(report), *options, *requirements]
        try:
            done = subprocess.run(
                ["bash", "-c", with_modules(modules, shlex.join(command))],
                check=False,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LONGEST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"pip found no answer within {LONGEST_SECONDS // 60} minutes") from None
        if done.returncode or not report.is_file():
            raise UserError(complaint(done.stdout.splitlines()) or "pip ended without a word")
        taken = map(_taken, json.loads(report.read_text(encoding="utf-8"))["install"])
        return sorted(taken, key=lambda each: each[0].name)


def run(python: Path | str, *words: str, locks: Sequence[int] = ()) -> str:
    """Run pip for a Python, and tell each file that it fetches; '' or pip's error on one line.

    pip inherits the descriptors `locks`.
    """
    together: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    said: list[str] = []
    together |= {"env": isolated(), "pass_fds": locks}
    with subprocess.Popen([*program(python), *words, "--progress-bar=off"], **together) as running:
        try:
            for line in running.stdout or ():
                if re.match(r"\s*(Downloading|Processing) ", line):
                    size = re.search(r"\([0-9.]+ .B\)", line)
                    print(f"  {line.split()[1].rpartition('/')[2]} {size[0] if size else ''}".rstrip(), flush=True)
                else:
                    said.append(line)
        except BaseException:  # a signal: `with` would wait for it
            running.kill()
            raise
    return complaint(said) if running.returncode else ""


def index_offers(index: str, name: str, version: str, *, pip: Sequence[str], seconds: float = PROBE_SECONDS) -> bool:
    """Whether an index answers in time and has that version. A `pip` (its words) asks, with the user's proxy."""
    ask = [*pip, "index", "versions", name, "--index-url", index, "--retries=0"]
    how: dict[str, Any] = {"env": environment(), "capture_output": True, "text": True, "timeout": seconds}
    with suppress(subprocess.TimeoutExpired):
        answer = subprocess.run(ask, check=False, **how)
        # Of that line alone: others name what is installed already.
        listed = re.search(r"(?m)^Available versions: (.*)$", answer.stdout)
        return listed is not None and version in listed[1].split(", ")
    return False


def with_modules(modules: Sequence[str], command: str) -> str:
    """A shell's command line that runs a command with these environment modules, where `module` is defined."""
    if not modules:
        return command
    loaded = f"module purge && module load {shlex.join(modules)}"
    return f"if type module > /dev/null 2>&1; then {{ {loaded}; }} > /dev/null 2>&1; fi; {command}"


def _taken(item: dict[str, Any]) -> tuple[Pin, str]:
    about, download = item["metadata"], item["download_info"]
    name = re.sub(r"[-_.]+", "-", about["name"]).lower()
    digest = download.get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise UserError(f"pip tells no hash of {name} {about['version']} ({download['url']})")
    return Pin(name, about["version"], hashes=(f"sha256:{digest}",)), download["url"]
