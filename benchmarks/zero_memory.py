"""What each rank holds under ZeRO, beside what the formulas say: bytes for each parameter of a GPT, by part and peak.

DDP holds parameters, gradients and the optimizer's state whole. ZeRO divides the state (stage 1), the gradients too
(2), and the parameters too (3). Bytes for each parameter with Adam, before they are divided:

- `fp32`: parameters 4, gradients 4, Adam's state 8. DeepSpeed adds a copy of the parameters that it updates, 4.
- `bf16`: parameters 2, gradients 2, Adam's state 8 and the float32 copy that is updated, 4: the paper's 2 + 2 + 12.

The peak is that of the resident memory beyond what the process had before it built the model: from then on
(`peak_from_start`), and over the last steps alone (`peak`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

STACK = "deepspeed"
STRATEGIES = ("ddp", "zero1", "zero2", "zero3")
PARTS = ("parameters", "gradients", "optimizer", "masters")
FIRST_STEPS, STEPS = 3, 3  # DeepSpeed has settled after its third step
LENGTH = 32  # tokens: few, so that activations are small beside the model
# Freed memory goes back to the system at once, so that resident memory is what is in use, as on a GPU. By default,
# glibc keeps freed pieces of up to 32 MB for itself.
RETURNED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
RESET_PEAK = "5"  # written to /proc/self/clear_refs


def predicted(strategy: str, ranks: int, held: str) -> dict[str, float]:
    """Bytes for each parameter that a rank holds, with Adam; `held` is fp32 or bf16."""
    stage = int(strategy[4]) if strategy.startswith("zero") else 0
    share = {part: 1 / ranks if stage >= least else 1.0 for part, least in zip(PARTS, (3, 2, 1, 1), strict=True)}
    number = 2.0 if held == "bf16" else 4.0
    copies = 4.0 if stage or held == "bf16" else 0.0
    whole = {"parameters": number, "gradients": number, "optimizer": 8.0, "masters": copies}
    return {part: whole[part] * share[part] for part in PARTS}


def _kind(strategy: str, held: str) -> Any:
    """The strategy's class; for bf16 one with parameters in bf16, which the strategies themselves do not have."""
    import torch

    from relay import strategies

    kind: Any = strategies.load(strategy)
    if held == "fp32":
        return kind
    if strategy != "ddp":

        class InDeepSpeedsMode(kind):  # type: ignore[misc]
            def configuration(self, parameters: int, **options: Any) -> dict[str, Any]:
                return {**super().configuration(parameters, **options), "bf16": {"enabled": True}}

            def divide(self, deepspeed: Any, model: Any, config: dict[str, Any]) -> None:
                super().divide(deepspeed, model.to(torch.bfloat16), config)

        return InDeepSpeedsMode

    class WithMasters(kind):  # type: ignore[misc]
        """DDP over parameters in bf16, each of which is updated in float32."""

        def make_optimizer(self) -> None:
            self.model.to(torch.bfloat16)
            self.masters = [parameter.detach().float() for parameter in self.model.parameters()]
            self.updates = [self.task.optimizer([master]) for master in self.masters]
            self.optimizer = self.updates[0]

        def update(self) -> None:
            for parameter, master, update in zip(self.model.parameters(), self.masters, self.updates, strict=True):
                master.grad = parameter.grad.float()
                update.step()
                master.grad = None
                parameter.data.copy_(master)

        def footprint(self) -> dict[str, int]:
            state = [value for update in self.updates for value in update.state.values()]
            tensors = [value for each in state for value in each.values() if value.dim()]
            masters = sum(master.nbytes for master in self.masters)
            return super().footprint() | {"optimizer": sum(t.nbytes for t in tensors), "masters": masters}

    return WithMasters


def _measure(rank: int, told: dict[str, str], strategy: str, held: str, shape: tuple[int, int], output: str) -> None:
    import torch

    from relay.process.ranks import Ranks

    os.environ |= {**told, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    ranks = Ranks.join("cpu", "gloo")
    kind = _kind(strategy, held)
    _trained(kind, ranks, held, 16, 1)  # loads what is loaded once
    gc.collect()
    before = _resident("VmRSS")
    _reset_peak()
    built, step = _trained(kind, ranks, held, *shape)
    from_start = _resident("VmHWM") - before
    gc.collect()
    _reset_peak()
    for _ in range(STEPS):
        step()
    peak = _resident("VmHWM") - before
    found = {"masters": 0, **built.footprint(), "peak": peak, "peak_from_start": max(from_start, peak)}
    told_by_all = ranks.gather(found)
    if rank == 0:
        largest = {name: max(each[name] for each in told_by_all) for name in found}
        count = sum(int(getattr(p, "ds_numel", p.numel())) for p in built.model.parameters())
        Path(output).write_text(json.dumps(largest | {"count": count}), encoding="utf-8")
    ranks.leave()


def _trained(kind: Any, ranks: Any, held: str, width: int, depth: int) -> tuple[Any, Any]:
    """A strategy that has trained a GPT for its first steps, and what trains another step."""
    import torch
    from torch.utils.data import TensorDataset

    from relay.spec.looked import Looked
    from relay.spec.tasks import BUILT_IN
    from relay.task.bound import BoundTask

    spec = Looked.read(BUILT_IN / "cards/gpt-small.json").task
    options = {**spec.options, "length": LENGTH, "width": width, "depth": depth, "heads": 8}
    task = BoundTask(replace(spec, options=options), 1, held, steps_per_epoch=9, total_steps=9)
    inputs = torch.randint(256, (1, LENGTH), generator=torch.Generator().manual_seed(ranks.rank))
    task.datasets = (TensorDataset(inputs, inputs),) * 2  # DDP settles its buckets with a batch of them
    built = kind(task, ranks, ranks.world_size, {})

    def step() -> None:
        built.train_step((inputs, inputs))

    for _ in range(FIRST_STEPS):
        step()
    return built, step


def _resident(name: str) -> int:
    from relay.process import system

    return system.held_bytes()[name]


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="utf-8")


def measured(strategy: str, held: str, shape: tuple[int, int], ranks: int) -> dict[str, float]:
    """Bytes for each parameter on the fullest rank, by part and at the peaks."""
    import torch.multiprocessing

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    told |= {"LOCAL_WORLD_SIZE": str(ranks)}
    os.environ |= RETURNED_AT_ONCE  # read by the processes when they start
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        arguments = (told, strategy, held, shape, output.name)
        torch.multiprocessing.start_processes(_measure, arguments, nprocs=ranks, start_method="spawn")
        found = json.loads(Path(output.name).read_text(encoding="utf-8"))
    count = found.pop("count")
    return {"parameters_of_the_model": count} | {name: round(value / count, 3) for name, value in found.items()}


def _in_stack() -> None:
    """Go on in the Python of the stack, which has DeepSpeed."""
    from relay.environments import overlay, versioned

    if (Path(sys.prefix) / versioned.MARKER).exists():
        return
    with redirect_stdout(sys.stderr):  # stdout is for the figures alone
        python = overlay.interpreter(overlay.make(ROOT / "envs" / f"{STACK}.txt"))
    os.execv(python, [python, *sys.argv])


def main() -> None:
    """Parse the command line, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--held", choices=["fp32", "bf16"], nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--strategies", nargs="+", default=list(STRATEGIES))
    given = parser.parse_args()
    _in_stack()
    rows = []
    for held in given.held:
        for ranks in given.ranks:
            for strategy in given.strategies:
                said = {f"predicted_{part}": value for part, value in predicted(strategy, ranks, held).items()}
                found = measured(strategy, held, (given.width, given.depth), ranks)
                rows.append({"strategy": strategy, "held": held, "ranks": ranks} | found | said)
                print(f"{strategy} in {held} on {ranks} ranks: {found}", file=sys.stderr, flush=True)
    print(json.dumps({"width": given.width, "depth": given.depth, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
