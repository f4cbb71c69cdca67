"""Packages of the user that a task's own file needs: to look at it, to make its data, to prove and to train it."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from living import well
from local_driver import LocalDriver
from plans import ROOT
from relay.environments import login_node, overlay, task_python
from relay.environments.locks import lock_of
from small_wheels import only, write_wheel

OWN = """\
import tiny_points
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Task(relay.Task):
    global_batch_size, epochs = 16, 10

    def prepare(self, folder):
        torch.save(torch.randn(tiny_points.COUNT, 4), folder / "points.pt")

    def datasets(self, folder):
        points = torch.load(folder / "points.pt", weights_only=True)
        return TensorDataset(points, points), TensorDataset(points, points)

    def model(self):
        return nn.Linear(4, 4)

    def loss(self, outputs, batch):
        return F.mse_loss(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate)
"""
CONFIG = {"device": "cpu", "epochs": 10, "gate": {"steps": 20}, "task": "my_task.py"}
CONFIG |= {"comparisons": [{"strategy": "cpu"}, {"strategy": "ddp", "devices_per_node": 2}]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A task that needs a package, and a folder of wheels that has it, where alone pip looks."""
    write_wheel(tmp_path / "index", "tiny-points", "1.0", "torch", body="COUNT = 64\n")
    only(tmp_path / "index", monkeypatch)
    (tmp_path / "my_task.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_task_that_needs_a_package_is_looked_at_proven_and_trained(folder: Path) -> None:
    """The only whole run of a task with a package of its own."""
    driver = LocalDriver(folder, CONFIG | {"packages": {"torch": ["tiny-points"]}})
    printed = well(driver.call("-n"))
    assert "Fetching what stack torch-" in printed, "a dry run says what it waits for"
    assert "nothing can be planned before its data are there" in printed
    well(driver.call())
    proofs = folder / "results/equivalence"
    assert all([*proofs.glob(f"{kind}/*/*.*")] for kind in ("references", "spot_checks"))
    gates = [json.loads(path.read_text()) for path in proofs.glob("gates/*/verdict.json")]
    assert [gate["equivalent"] for gate in gates] == [True, True]
    # What was prepared is gone. The rule prepares it again, and needs the package for it.
    (data,) = (folder / "results/datasets").glob("*/manifest.json")
    shutil.rmtree(data.parent)
    well(driver.call("data"))
    assert data.exists()


def test_a_task_without_packages_is_looked_at_by_the_drivers_own_python() -> None:
    environment = login_node.environment_of(None, "torch", ROOT)
    assert task_python.interpreter(environment, lock_of(ROOT, "torch")) == sys.executable
    assert overlay.place(lock_of(ROOT, "torch")) is None
