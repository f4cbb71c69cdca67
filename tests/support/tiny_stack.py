"""A stack of two small packages, to try environments with: the real lock's hashes, real pip and uv, in seconds.

A plugin of pytest for its fixture, and a module that the tests import (hence PYTEST_DONT_REWRITE).
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from living import LONGEST_SECONDS
from relay.base.errors import UserError
from relay.environments import wheelhouse
from relay.environments.locks import read, text_of

ROOT = Path(__file__).resolve().parents[2]
# One pure, one compiled.
PACKAGES = ("typing-extensions", "markupsafe")

FETCH = """
import sys; from pathlib import Path; from relay.base import entry; from relay.environments import wheelhouse
entry.run(lambda: wheelhouse.fetch(wheelhouse.order(Path(sys.argv[1]), "tiny", "cpu")) and 0)
"""
PREPARE = """
import json, sys; from pathlib import Path; from relay.base import entry; from relay.environments import node as n
from relay.environments.node_folder import node_disk
def main():
    environment, disk = json.loads(sys.argv[1]), node_disk(sys.argv[2])
    n.prepare(environment, disk)
    print(*n.interpreter(environment, disk))
    return 0
entry.run(main)
"""


def small_lock(lock: Path, *packages: str, of: str = "torch", spoil: bool = False) -> Path:
    """A lock of some packages of a real one, with their hashes; `spoil`: with wrong ones."""
    kept = [pin for pin in read(ROOT / f"envs/{of}.txt") if pin.name in packages]
    if spoil:
        kept = [replace(pin, hashes=("sha256:" + "0" * 64,)) for pin in kept]
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(text_of(kept))
    return lock


def project(folder: Path, *, spoil: bool = False) -> Path:
    """A project with the stack `tiny`, as its lock."""
    small_lock(folder / "envs/tiny.txt", *PACKAGES, spoil=spoil)
    return folder


def python(program: str, *arguments: object) -> dict[str, Any]:
    """A program with the project's modules, as keywords of `subprocess`."""
    path = {"PYTHONPATH": str(ROOT / "scripts"), "PYTHONUNBUFFERED": "1"}
    return {"args": [sys.executable, "-c", program, *map(str, arguments)], "env": os.environ | path}


def run(command: dict[str, Any], cwd: Path, before: tuple[str, ...] = (), **environment: str | None) -> str:
    """Run it, `before` it a command such as `unshare --net`; variables that are None are unset. What it printed.

    Raises UserError with its one line.
    """
    variables = {name: value for name, value in (command["env"] | environment).items() if value is not None}
    done = subprocess.run(
        [*before, *command["args"]], cwd=cwd, env=variables, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )
    if done.returncode:
        assert re.fullmatch(r"error: .*\n", done.stderr), done.stderr
        raise UserError(done.stderr)
    return done.stdout


def fetched(folder: Path, results: Path, **environment: str | None) -> Path:
    """The wheelhouse of a project's stack `tiny`, made by a process of its own. Raises UserError with its one line."""
    run(python(FETCH, folder), results, **environment)
    return next(path for path in (results / wheelhouse.FOLDER).glob("tiny-*"))


def offline(wheels: Path) -> dict[str, str]:
    """pip finds wheels in this folder alone, which is quicker than asking indexes."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}


def told(place: Path | None = None, **changes: Any) -> dict[str, Any]:
    """What a job of mode `wheels` is told of its environment."""
    found = {"mode": "wheels", "stack": "tiny", "python": wheelhouse.base_python(), "wheelhouse": str(place)}
    found |= {"site_wheels": False, "packages": [], "overlay": None, "modules": [], "stack_modules": []}
    found |= {"arch_list": None, "image": None, "nvidia": False}
    return found | changes


def prepared(environment: dict[str, Any], disk: Path, **options: Any) -> tuple[str, str]:
    """Prepare it by a process of its own: what that said, and the interpreter. Raises UserError with its one line."""
    *said, interpreter = run(python(PREPARE, json.dumps(environment), disk), disk, **options).splitlines()
    return "\n".join(said), interpreter


def needs_root() -> None:
    if os.geteuid():
        pytest.skip("needs root: network namespaces and mounts")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheelhouse of the stack `tiny`; to be left as it is."""
    folder = tmp_path_factory.mktemp("tiny")
    return folder / fetched(project(folder), folder)
