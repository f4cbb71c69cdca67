"""Tasks of the catalogue, for a few steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relay.datasets import catalogue
from relay.spec import tasks
from relay.task.task import Task

STEPS = 5


def task(name: str, precision: str = "fp64", **settings: Any) -> Task:
    """A task of the catalogue, for a few steps; a GPT comes narrow."""
    spec = tasks.task(name)
    if name.startswith("gpt"):
        spec = replace(spec, network_options={**spec.network_options, "width": 16})
    dataset = catalogue.dataset(spec.dataset)
    return Task(spec, dataset.classes, 5, precision, 10, STEPS, kind=dataset.kind, **settings)
