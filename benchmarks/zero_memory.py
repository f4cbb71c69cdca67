"""What each rank holds under ZeRO, by part, beside what the formulas say: bytes for each parameter of a GPT.

DDP holds parameters, gradients and the optimizer's state whole. With Adam in float32 that is 4 + 4 + 8 bytes for each
parameter. ZeRO divides the state (stage 1), the gradients too (2), and the parameters too (3). DeepSpeed adds a copy
of the parameters that it updates, 4 bytes, which is divided in every stage.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

STACK = "deepspeed"
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
PARTS = ("parameters", "gradients", "optimizer", "masters")
STEPS = 2


def predicted(strategy: str, ranks: int) -> dict[str, float]:
    """Bytes for each parameter that a rank holds, with Adam in float32."""
    stage = int(strategy[4]) if strategy.startswith("zero") else 0
    share = {part: 1 / ranks if stage >= least else 1.0 for part, least in zip(PARTS, (3, 2, 1, 1), strict=True)}
    copies = 4.0 if stage else 0.0
    whole = {"parameters": 4.0, "gradients": 4.0, "optimizer": 8.0, "masters": copies}
    return {part: whole[part] * share[part] for part in PARTS}


def _measure(rank: int, told: dict[str, str], strategy: str, task_name: str, output: str) -> None:
    import torch

    from relay import strategies
    from relay.process import machine
    from relay.process.ranks import Ranks
    from relay.spec import tasks
    from relay.task.task import Task

    os.environ |= {**told, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    ranks = Ranks.join("cpu", "gloo")
    kind, spec = strategies.load(strategy), tasks.task(task_name)
    task = Task(spec, 256, 1, "fp32", steps_per_epoch=STEPS, total_steps=STEPS, kind="text")
    if strategy != "ddp":
        from relay.strategies import _deepspeed_library

        _deepspeed_library.imported("cpu")
    before = machine.held_bytes()["VmRSS"]
    built = kind(task, ranks, ranks.world_size, {})
    parameters = sum(_size(parameter) for parameter in built.model.parameters())
    inputs = torch.randint(256, (1, *spec.input_shape), generator=torch.Generator().manual_seed(rank))
    for _ in range(STEPS):
        built.train_step(inputs, inputs)
    held = {"masters": 0, **built.footprint()}
    peak = machine.peak_memory_bytes(ranks.devices) - before
    told_by_all = ranks.gather((held, peak))
    if rank == 0:
        found = {part: max(each[part] for each, _ in told_by_all) for part in PARTS}
        found |= {"peak": max(peak for _, peak in told_by_all), "count": parameters}
        Path(output).write_text(json.dumps(found), encoding="utf-8")
    ranks.leave()


def _size(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def measured(strategy: str, task: str, ranks: int) -> dict[str, float]:
    """Bytes for each parameter on the fullest rank, by part, and at the peak (beyond those held before it began)."""
    import torch.multiprocessing

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    told |= {"LOCAL_WORLD_SIZE": str(ranks)}
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        arguments = (told, strategy, task, output.name)
        torch.multiprocessing.start_processes(_measure, arguments, nprocs=ranks, start_method="spawn")
        found = json.loads(Path(output.name).read_text(encoding="utf-8"))
    count = found.pop("count")
    return {"parameters_of_the_model": count} | {name: round(value / count, 3) for name, value in found.items()}


def _in_stack() -> None:
    """Go on in the Python of the stack, which has DeepSpeed."""
    from relay.environments import overlay

    with redirect_stdout(sys.stderr):  # stdout is for the figures alone
        python = overlay.interpreter(overlay.make(ROOT / "envs" / f"{STACK}.txt"))
    if Path(python).parent.parent.resolve() != Path(sys.prefix).resolve():
        os.execv(python, [python, *sys.argv])


def main() -> None:
    """Parse the command line, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="gpt-small")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    given = parser.parse_args()
    _in_stack()
    rows = []
    for ranks in given.ranks:
        for strategy in given.strategies:
            said = {f"predicted_{part}": value for part, value in predicted(strategy, ranks).items()}
            rows.append({"strategy": strategy, "ranks": ranks} | measured(strategy, given.task, ranks) | said)
            print(f"{strategy} on {ranks} ranks is measured", file=sys.stderr, flush=True)
    print(json.dumps({"task": given.task, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
