"""The mini cluster by hand needs what `make install` gives, and no pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_it_starts_without_pytest() -> None:
    """Its modules are imported, and its first question answered, where pytest cannot be."""
    program = "import sys; sys.modules['pytest'] = None; sys.path.insert(0, 'tests/support');"
    program += "import mini_slurm; print(repr(mini_slurm.obstacle({})))"
    folder = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("''", "'a mini cluster needs root'", "'namespaces are not allowed"))
