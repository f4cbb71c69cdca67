"""A task of one's own on a Slurm cluster: its data are made on the login node, its gate and its training are jobs.

What is edited meanwhile changes nothing of them.
"""

from __future__ import annotations

import csv
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mini_slurm import MiniSlurm
from slurm_runs import site_file, slurm_snakemake

BESIDE = '''
"""Made where the task's `prepare` runs."""

import os

import torch


def save(folder, count):
    points = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    job = os.environ.get("SLURM_JOB_ID", "none")
    torch.save({"points": points, "labels": points[:, :3].argmax(1), "job": job}, folder / "points.pt")
'''
OWN = '''
"""A model that is more than its children one after the other, on data that a module beside this file makes."""

import points_made_here
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import relay


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.last = nn.Linear(width, 3)
        self.inner = nn.Linear(width, width)
        self.first = nn.Linear(6, width)

    def forward(self, points):
        hidden = self.first(points)
        return self.last(hidden + F.relu(self.inner(hidden)))


class Task(relay.Task):
    unit = "points"
    global_batch_size, learning_rate = 16, 0.1
    width, count = 8, 200

    def prepare(self, folder):
        points_made_here.save(folder, self.count)

    def datasets(self, folder):
        made = torch.load(folder / "points.pt", weights_only=True)
        points, labels = made["points"], made["labels"]
        return TensorDataset(points[40:], labels[40:]), TensorDataset(points[:40], labels[:40])

    def model(self):
        return Residual(self.width)

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs, batch[1])

    def optimizer(self, parameters):
        return torch.optim.SGD(parameters, self.learning_rate, momentum=0.9)

    def metrics(self, outputs, batch):
        return {"hits": (outputs.argmax(1) == batch[1]).double().mean()}
'''


def broken_once_a_job_has_ended(folder: Path) -> bool:
    """Whether the task's file and the config were broken while jobs were still to come."""
    while not [*(folder / "results/preflight").glob("*/facts.json")]:
        time.sleep(0.1)
    (folder / "my_task.py").write_text("edited (\n")
    (folder / "mine.yaml").write_text("repeats: [\n")
    return not [*(folder / "results").glob("equivalence/references/*/reference.pt")]


@pytest.mark.long
@pytest.mark.slurm
@pytest.mark.timeout(900)
def test_a_task_of_ones_own_is_proven_and_trained_on_two_nodes(cluster: MiniSlurm, tmp_path: Path) -> None:
    """Only this breaks files while jobs of a cluster are still to come."""
    (tmp_path / "points_made_here.py").write_text(BESIDE)
    (tmp_path / "my_task.py").write_text(OWN)
    config = {"device": "cpu", "repeats": 1, "epochs": 3, "runtime_minutes": 10, "gate": {"steps": 20}}
    config |= {"task": str(tmp_path / "my_task.py"), "task_options": {"width": 12}}
    config |= {"comparisons": [{"strategy": "ddp", "nodes": 2, "launcher": "srun"}]}
    with ThreadPoolExecutor(1) as beside:
        broken = beside.submit(broken_once_a_job_has_ended, tmp_path)
        status, printed = slurm_snakemake(cluster, tmp_path, config, site=site_file(tmp_path))
    assert status == 0, printed
    assert broken.result()

    (made,) = (tmp_path / "results" / "datasets").glob("*/points.pt")
    assert torch.load(made, weights_only=True)["job"] == "none", "the data are made on the login node, not in a job"
    with (tmp_path / "results" / "comparison.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert (row["status"], row["equivalent"]) == ("done", "true"), row["reason"]
    (verdict,) = (tmp_path / "results" / "equivalence" / "gates").glob("*/verdict.json")
    assert json.loads(verdict.read_text())["max_loss_difference"] < 1e-9
    (path,) = (tmp_path / "results" / "runs").glob("*/summary.json")
    summary = json.loads(path.read_text())
    assert len(summary["hosts"]) == 2
    assert set(summary["evaluations"][-1]["test_metrics"]) == {"hits"}
    assert summary["evaluations"][-1]["test_metrics"]["hits"] > 0.6, "chance finds a third"
