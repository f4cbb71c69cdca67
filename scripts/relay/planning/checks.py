"""From a setting to the checks before it: its gate, the gate's reference, and the preflight of its shape."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from relay.planning.settings import BACKENDS
from relay.spec.declare import bearing, reset
from relay.spec.run import GROUPS, Setting, Training
from relay.spec.setting import Computation, Feeding, Length, Shape, StrategySpec

Kind = TypeVar("Kind", bound=Training)


def named(kind: type[Kind], setting: Setting, **more: Any) -> Kind:
    """A run, gate, reference or probe of the setting. `more` has its id, its seed and the other fields of `kind`."""
    return kind(**{each.name: getattr(setting, each.name) for each in fields(Setting)}, **more)


def gated(setting: Setting, steps: int) -> Setting:
    """The setting as its gate trains it for `steps` steps. Fields that do not bear on the gate have their defaults.

    Settings that differ in such fields only therefore share a gate.
    """
    per_epoch = setting.length.steps_per_epoch
    return replace(
        setting,
        **{name: reset(getattr(setting, name), "gate") for name, _ in GROUPS if name != "length"},
        length=Length(
            epochs=steps / per_epoch,
            steps_per_epoch=per_epoch,
            total_steps=steps,
            evaluate_every_steps=steps,
            warmup_steps=0,
        ),
    )


def referred(gate: Setting) -> Setting:
    """The setting of a gate's reference: a plain loop in a single process, on one device of the same kind."""
    device = gate.shape.device
    return replace(
        gate,
        strategy=StrategySpec(name="reference"),
        shape=Shape(device=device, backend=BACKENDS[device][0]),
        computation=Computation(precision=gate.computation.precision),
    )


def asked_of_nodes(setting: Setting) -> dict[str, Any]:
    """The values that a preflight depends on. Settings with equal values share a preflight."""
    groups = (getattr(setting, name) for name, _ in GROUPS)
    values = {name: value for group in groups for name, value in bearing(group, "job").items()}
    # Runs with special needs have a preflight of their own, so that other runs do not fail for these needs.
    special: dict[str, Any] = {"loader": setting.feeding.loader} if setting.feeding.loader != Feeding.loader else {}
    special |= {"node_needs": setting.strategy.node_needs} if setting.strategy.node_needs else {}
    return {**values, **special, "stack": setting.strategy.stack}
