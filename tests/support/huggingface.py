"""A Python that has Hugging Face's transformers: a plugin of pytest for its fixture."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

VERSIONS = ("transformers==5.23.0", "accelerate==1.15.0")


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with transformers and this one's packages, but for torchvision, which the Trainer would import."""
    folder = tmp_path_factory.mktemp("huggingface")
    inside = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    for number, options in enumerate(((), ("--no-deps",))):  # accelerate alone, for it would bring another torch
        wanted = ["install", "--quiet", *options, "--target", str(inside), VERSIONS[number]]
        done = subprocess.run([sys.executable, "-m", "pip", *wanted], capture_output=True, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"the package index has no {VERSIONS[number]}")
        assert done.returncode == 0, done.stderr
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "torchvision" not in path.name and not (inside / path.name).exists():
            (inside / path.name).symlink_to(path)
    base = Path(sys._base_executable)  # type: ignore[attr-defined]
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    made = folder / "bin" / "python"
    made.parent.mkdir(exist_ok=True)
    made.unlink(missing_ok=True)
    made.symlink_to(base)
    return made
