"""A run as its job sees it: everything resolved on the login node, written to `run.json`, read by every process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json, write_json
from relay.spec.catalogue import DatasetSpec, TaskSpec
from relay.spec.job import Job

MEASURED = "measured"


def read_measured(path: Path) -> dict[str, Any]:
    """What a run's first processes have measured for all later ones, from the third part of its `run.json`."""
    measured: dict[str, Any] = (read_json(path) or {}).get(MEASURED) or {}
    return measured


def write_measured(path: Path, measured: Mapping[str, Any]) -> None:
    """Keep it there, where it is not known yet."""
    known = read_json(path)
    if measured and known.get(MEASURED) != measured:
        write_json(path, known | {MEASURED: dict(measured)})


@dataclass(frozen=True, kw_only=True)
class Run:
    """One strategy in one setting, one repeat; `id` carries the fingerprint of all that changes the result.

    `divides` and `lossy` are the strategy's: what it splits, and which of its options knowingly round what is sent,
    with the part of its length by which an update may then miss the exact one.
    `task` is already adapted to the run: its learning rate is the scaled one. Paths are relative to the working
    directory. `threads` are intra-op threads of each process. `steps_per_epoch` leaves out the last, partial batch.
    `gpu_name` and `software` are the site's: the kind of GPU, and where Python comes from, as mode and digest.
    What does not bear on the result (account, partition, time limit) is the `Job` beside it in the same file.
    """

    id: str
    setting: str
    repeat: int
    seed: int
    task: TaskSpec
    dataset: DatasetSpec
    strategy: str
    strategy_file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    divides: tuple[str, ...] = ()
    lossy: Mapping[str, float] = field(default_factory=dict)
    stack: str = "torch"
    device: str = "cpu"
    backend: str = "gloo"
    site: str = "local"
    gpu_name: str | None = None
    software: str = "current"
    launcher: str = "none"
    nodes: int = 1
    devices_per_node: int = 1
    processes_per_node: int = 1
    global_batch_size: int
    learning_rate_scaling: str = "none"
    loader: str = "resident"
    data_workers: int = 0
    cpus_per_task: int = 1
    threads: int = 1
    interop_threads: int = 1
    precision: str = "fp32"
    compile: bool = False
    channels_last: bool = False
    activation_checkpointing: bool = False
    epochs: float
    steps_per_epoch: int
    total_steps: int
    evaluate_every_steps: int
    warmup_steps: int = 10
    checkpoint_minutes: float = 10.0

    @property
    def world_size(self) -> int:
        """Processes of the whole run."""
        return self.nodes * self.processes_per_node

    @property
    def devices(self) -> int:
        """Devices of the whole run; they differ from its processes where one process holds several."""
        return self.nodes * self.devices_per_node

    @property
    def devices_per_process(self) -> int:
        """Devices that each process holds: several where one process holds all; 1 where several share one."""
        return max(1, self.devices_per_node // self.processes_per_node)

    def write(self, path: Path, job: Job | None = None) -> None:
        """Write `run.json`: the run, and the job that it goes to. What its processes have measured there stays."""
        measured = read_measured(path)
        declared = self.to_dict(job) | ({MEASURED: measured} if measured else {})
        if json.loads(json.dumps(declared)) != read_json(path):  # each call of the workflow comes here, for every run
            write_json(path, declared)

    def to_dict(self, job: Job | None = None) -> dict[str, Any]:
        """What `run.json` holds: everything that a job has to know."""
        return asdict(self) | ({"job": asdict(job)} if job else {})

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read `run.json`; raises FileNotFoundError, and UserError where it is none of this version."""
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError) as fault:
            raise UserError(f"{path}: is no run of this version ({fault}); make the plan again") from None

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        """The inverse of `dataclasses.asdict` after a trip through JSON, which turns tuples into lists."""
        task, dataset = dict(values["task"]), dict(values["dataset"])
        task["input_shape"] = tuple(task["input_shape"])
        dataset["shape"] = tuple(dataset["shape"])
        rest = {k: v for k, v in values.items() if k not in ("task", "dataset", "divides", "job", MEASURED)}
        return cls(
            **rest,
            task=TaskSpec(**task),
            dataset=DatasetSpec(**dataset),
            divides=tuple(values.get("divides", ())),
        )
