"""A Python that has Hugging Face's transformers: a plugin of pytest for its fixture."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hooked import empty, link

VERSIONS = ("transformers==5.23.0", "accelerate==1.15.0")


@pytest.fixture(scope="module")
def huggingface(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with transformers and this one's packages."""
    python, inside = empty(tmp_path_factory.mktemp("huggingface"))
    for number, options in enumerate(((), ("--no-deps",))):  # accelerate alone, for it would bring another torch
        wanted = ["install", "--quiet", *options, "--target", str(inside), VERSIONS[number]]
        done = subprocess.run([sys.executable, "-m", "pip", *wanted], capture_output=True, text=True)
        if "No matching distribution" in done.stderr:
            pytest.skip(f"the package index has no {VERSIONS[number]}")
        assert done.returncode == 0, done.stderr
    link(inside, Path(sysconfig.get_path("purelib")))
    return python
