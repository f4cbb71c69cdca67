"""One process of a job: how its role is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_what_torch_imports_with_the_first_optimizer_is_there_before_and_is_not_looked_through() -> None:
    """Otherwise the collector would go through the compiler's objects while training."""
    program = """
import gc, sys
from relay.launch.imports import imported
imported("training.trainer")
loaded = len(sys.modules)
import torch
optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
optimizer.zero_grad()
frozen = gc.get_freeze_count() > 100 * len(gc.get_objects())
print("torch._dynamo" in sys.modules, len(sys.modules) - loaded < 10, frozen)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=SCRIPTS, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
