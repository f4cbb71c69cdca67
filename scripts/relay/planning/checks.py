"""From a run to the gate that it goes through, the reference of that, and the preflight of its shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relay.planning.settings import BACKENDS
from relay.spec.run import Run

# What a preflight looks at; runs that agree in it share one.
SHAPE = (
    *("site", "stack", "device", "backend", "launcher"),
    *("nodes", "devices_per_node", "processes_per_node", "cpus_per_task", "threads", "compile"),
)


def gate(run: Run, seed: int, steps: int) -> Run:
    """The run's gate, without a name yet: all that does not bear on equivalence is set to one value.

    Those are the loader, CPUs and threads, the repeat, the length and the segments of the run.
    """
    return replace(
        run,
        repeat=0,
        seed=seed,
        learning_rate_scaling="none",  # the task's rate is scaled already
        loader="resident",
        data_workers=0,
        cpus_per_task=1,
        threads=1,
        interop_threads=1,
        epochs=steps / run.steps_per_epoch,
        total_steps=steps,
        evaluate_every_steps=steps,
        warmup_steps=0,
        checkpoint_minutes=Run.checkpoint_minutes,
    )


def reference(gate: Run) -> Run:
    """The single process that computes what the gate's processes should, on one device of the same kind."""
    return replace(
        gate,
        strategy="reference",
        strategy_file="",
        options={},
        divides=(),
        lossy={},
        compile=False,
        channels_last=False,
        activation_checkpointing=False,
        stack="torch",
        backend=BACKENDS[gate.device][0],
        launcher="none",
        nodes=1,
        devices_per_node=1,
        processes_per_node=1,
    )


def shape(run: Run) -> dict[str, Any]:
    """The run's shape and stack."""
    return {name: getattr(run, name) for name in SHAPE}


def preflight(run: Run, name: str) -> Run:
    """The run as its preflight sees it: of the shape, and of no strategy."""
    return replace(
        run,
        id=name,
        setting=name,
        repeat=0,
        seed=0,
        strategy="preflight",
        strategy_file="",
        options={},
        divides=(),
        lossy={},
        epochs=1.0,
        total_steps=run.steps_per_epoch,
        evaluate_every_steps=run.steps_per_epoch,
        warmup_steps=0,
        checkpoint_minutes=Run.checkpoint_minutes,
    )
