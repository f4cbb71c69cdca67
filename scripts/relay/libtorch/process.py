"""The process of a LibTorch job: exports a run's model, runs it in C++, and holds outputs and speed against Python's.

Without a run it builds and runs the smallest program there is.

Started by the launcher: `python -m relay.launch.worker libtorch.process WORK --help`.
"""

import json
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from relay.base import options
from relay.base.errors import UserError
from relay.base.files import write_json
from relay.environments import kept
from relay.export.final import final_checkpoint, read_model
from relay.libtorch.program import PROGRAMS, cmake_options, program, said
from relay.process.joined import joined
from relay.process.ranks import Ranks
from relay.run_folder.places import Places, dataset_folder
from relay.spec.job import Job
from relay.spec.run import Run
from relay.task.bound import BoundTask
from relay.task.calls import in_mode, on_device
from relay.task.data import Resident
from relay.task.split import Chosen

# How far the outputs may be from Python's, relative to the largest of them (or to 1, where all are smaller).
LIMITS = {"fp32": 1e-5, "fp64": 1e-12}
ROUNDS = 3  # Python and C++ are measured in turns


@dataclass
class Example:
    """A trained model, and the samples on which Python and C++ are compared."""

    model: nn.Module
    inputs: torch.Tensor
    batch: int
    precision: str

    @classmethod
    def of(cls, run: Run, places: Places, device: torch.device) -> Self:
        """The run's final model, and its dataset's test samples. It computes in fp32, or in fp64 as its run did."""
        precision = "fp64" if run.computation.precision == "fp64" else "fp32"
        folder = dataset_folder(places.results, run.dataset)
        task = replace(
            BoundTask.of(run, folder), precision=precision, compiled=False, channels_last=False, recompute=False
        )
        model = task.model()
        model.load_state_dict(read_model(final_checkpoint(run, places) / "strategy"))
        split = task.split("test")
        arguments, keywords = task.arguments(Resident(split, device).fetch(Chosen(torch.arange(len(split)))))
        if keywords or len(arguments) != 1 or not isinstance(inputs := arguments[0], torch.Tensor):
            raise UserError(f"libtorch: the model of {run.task.name} takes more than one tensor; allowed: one tensor")
        return cls(on_device(in_mode(model, training=False), device), inputs, run.batch.global_batch_size, precision)

    @torch.inference_mode()
    def outputs(self) -> torch.Tensor:
        """Python's outputs for all samples."""
        outputs = torch.cat([self.model(part) for part in self.inputs.split(self.batch)])
        if outputs.is_cuda:
            torch.cuda.synchronize()
        return outputs

    def samples_per_second(self, least_seconds: float) -> float:
        """Python's speed, over whole passes."""
        began, passes = time.perf_counter(), 0
        while (seconds := time.perf_counter() - began) < least_seconds:
            self.outputs()
            passes += 1
        return passes * len(self.inputs) / seconds

    @torch.no_grad()
    def export(self, path: Path) -> None:
        """Write the model as TorchScript, traced with one batch."""
        traced = torch.jit.trace(self.model, self.inputs[: self.batch], check_trace=False)
        traced.save(str(path))


def speed_in_cpp(executable: Path, work: Path, example: Example, least_seconds: float) -> float:
    """The program's speed; it reads and writes files in `work`. Raises UserError with its own words where it fails."""
    kind, sizes = str(example.inputs.dtype).removeprefix("torch."), "x".join(map(str, example.inputs.shape))
    words = [work / "model.pt", work / "inputs.bin", kind, sizes, work / "outputs.bin"]
    words += [example.inputs.device.type, example.batch, torch.get_num_threads(), least_seconds]
    timing = json.loads(said(executable, *words))
    return float(timing["samples"] / timing["seconds"])


def compared(
    run: Run, places: Places, ranks: Ranks, sources: Path, work: Path, seconds: float, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Run the model in Python and in C++, for so many seconds in each round; what was found.

    Where a compiler is missing, `status` is skipped, and `reason` names the package. `work` is a folder for files,
    `environment` that of the job, with the site's flags.
    Raises UserError where the program cannot be built, or fails.
    """
    facts = {"run": run.id, "task": run.task.name, "device": ranks.device.type, "batch": run.batch.global_batch_size}
    facts |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    if missing := kept.lacking(PROGRAMS):
        return {**facts, "status": "skipped", "reason": "; ".join(missing)}
    example = Example.of(run, places, ranks.device)
    executable = program(sources, cmake_options(environment))
    example.export(work / "model.pt")
    example.inputs.cpu().numpy().tofile(work / "inputs.bin")
    speeds = [
        (example.samples_per_second(seconds), speed_in_cpp(executable, work, example, seconds)) for _ in range(ROUNDS)
    ]
    python, cpps = (statistics.median(each) for each in zip(*speeds, strict=True))
    wanted = example.outputs().cpu()
    outputs = torch.from_numpy(np.fromfile(work / "outputs.bin", dtype=wanted.numpy().dtype)).reshape(wanted.shape)
    difference, limit = _difference(outputs, wanted), LIMITS[example.precision]
    equal = difference <= limit
    return {
        **facts,
        "status": "equal" if equal else "differs",
        "reason": "" if equal else f"its outputs differ by {difference:.1e}, {limit:.0e} is allowed",
        "samples": len(example.inputs),
        "difference": difference,
        "limit": limit,
        "python_samples_per_second": python,
        "cpp_samples_per_second": cpps,
    }


def _difference(outputs: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest output, or to 1."""
    largest = max(1.0, float(wanted.abs().max()))
    figure = float((outputs - wanted).abs().max()) / largest
    return float("inf") if math.isnan(figure) else figure


def main(arguments: list[str]) -> None:
    """Parse the command line, compare, and write what was found."""
    parser = options.parser(__doc__, "spec", "output", "results", prog="libtorch.process")
    parser.add_argument("--run", help="the run whose model is compared; without: the example")
    parser.add_argument("--sources", type=Path, required=True, help="the folder of the C++ program")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="how long each round measures (default: %(default)s)"
    )
    given = parser.parse_args(arguments)
    with joined(given.spec) as (_, ranks):
        job = Job.read(given.spec)
        environment = job.environment if job else {}
        if given.run:
            places = Places(given.results, given.run)
            run = Run.read(places.run / "run.json")
            findings = compared(run, places, ranks, given.sources, given.output.parent, given.seconds, environment)
        elif missing := kept.lacking(PROGRAMS):
            findings = {"status": "skipped", "reason": "; ".join(missing)}
        else:
            findings = {"status": "ran", "said": said(program(given.sources, cmake_options(environment))).strip()}
        write_json(given.output, findings)
