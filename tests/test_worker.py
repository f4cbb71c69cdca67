"""One process of a job: how its role is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


def test_a_roles_imports_are_no_garbage_and_what_comes_later_may_be() -> None:
    program = """
import gc
from relay.launch.imports import imported
assert imported("preflight.facts").main
print(gc.isenabled(), gc.get_freeze_count() > 1000)
try:
    imported("no.such.role")
except ModuleNotFoundError:
    print(gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=SCRIPTS, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
