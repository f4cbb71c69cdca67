"""Why pip installs the driver's environment and finds wheels: uv does not read what sites configure pip with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.environments import installer, pip
from small_wheels import simple_index, write_wheel


@pytest.mark.slow
def test_an_index_that_pip_is_configured_with_is_unknown_to_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = tmp_path / "index"
    write_wheel(index, "tiny-audio", "1.0")
    simple_index(index)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {index.as_uri()}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    (taken,) = pip.would_install(["tiny-audio"], python=sys.executable)
    assert (taken.name, taken.version) == ("tiny-audio", "1.0")
    uv = [installer.program(), "pip", "install", "--dry-run", "--offline", "--no-cache", "--python", sys.executable]
    done = subprocess.run([*uv, "tiny-audio"], capture_output=True, text=True, check=False)
    assert done.returncode != 0, "uv reads pip's configuration now: bootstrap.py could use it"
    found = subprocess.run([*uv, "--default-index", index.as_uri(), "tiny-audio"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
