"""Runs of commands, started as their jobs do, without Snakemake.

A module that tests import (hence PYTEST_DONT_REWRITE).
"""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from living import LONGEST_SECONDS
from plans import ROOT, planned
from relay.run_folder.places import Places
from relay.spec.run import Run


@dataclass
class Commanded:
    """The run of a command, in the current folder."""

    places: Places

    @property
    def folder(self) -> Path:
        """Where the command runs."""
        script = Run.read(self.places.run / "run.json").strategy.script
        return self.places.folder / script.within

    @property
    def log(self) -> Path:
        return self.places.results / "job.log"

    def start(self, attempt: int = 1, *more: str) -> subprocess.Popen[str]:
        """Start its job, with `more` options."""
        words = [sys.executable, f"{ROOT}/scripts/main.py", "train", "--run", self.places.run_id]
        words += ["--first", "0", "--last", "1"]
        variables = os.environ | {"TORCH_RELAY_JOB_LOG": str(self.log)}
        pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen([*words, "--attempt", str(attempt), *more], env=variables, **pipe)

    def run(self, attempt: int = 1, *more: str) -> tuple[int, str]:
        """Its job's exit status, and what it printed."""
        job = self.start(attempt, *more)
        try:
            printed, _ = job.communicate(timeout=LONGEST_SECONDS)
        finally:
            job.terminate()
        return job.returncode, printed

    def told(self) -> Mapping[str, Any]:
        """How the job says that it ended."""
        return json.loads(self.log.with_suffix(".ending.json").read_text())

    def summary(self) -> dict[str, Any]:
        """Its summary."""
        words = [sys.executable, f"{ROOT}/scripts/main.py", "summarise", "--run", self.places.run_id]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads((self.places.run / "summary.json").read_text())


def commanded(script: str, command: str = "python train.py", **comparison: Any) -> Commanded:
    """The only run of a comparison that names a command. `script` becomes the train.py that it names, or that here."""
    named = next((word for word in command.split() if word.endswith("train.py")), "train.py")
    Path(named).write_text(textwrap.dedent(script))
    config = {name: comparison.pop(name) for name in ("warmup_steps", "monitor_seconds") if name in comparison}
    (run,) = planned({"command": command, **comparison}, device="cpu", **config).runs
    places = Places(Path("results"), run.id)
    run.write(places.run / "run.json")
    (places.run / "start.json").write_text(json.dumps({"generation": "first", "run": run.id}))
    return Commanded(places)
