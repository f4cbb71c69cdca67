"""From a setting to the gate that it goes through, the reference of that, and the preflight of its shape."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from relay.planning.settings import BACKENDS
from relay.spec.declare import bearing, reset
from relay.spec.run import Setting, Training
from relay.spec.setting import Computation, Feeding, Length, Shape, StrategySpec

Kind = TypeVar("Kind", bound=Training)


def named(kind: type[Kind], setting: Setting, **more: Any) -> Kind:
    """The setting as a run, gate, reference or probe: with a name, a seed, and what else that kind has."""
    return kind(**{each.name: getattr(setting, each.name) for each in fields(Setting)}, **more)


def gated(setting: Setting, steps: int) -> Setting:
    """The setting as its gate trains it: all that does not bear on the arithmetic has its default."""
    per_epoch = setting.length.steps_per_epoch
    return replace(
        setting,
        shape=reset(setting.shape, "gate"),
        place=reset(setting.place, "gate"),
        computation=reset(setting.computation, "gate"),
        feeding=reset(setting.feeding, "gate"),
        batch=reset(setting.batch, "gate"),
        length=Length(
            epochs=steps / per_epoch,
            steps_per_epoch=per_epoch,
            total_steps=steps,
            evaluate_every_steps=steps,
            warmup_steps=0,
        ),
    )


def referred(gate: Setting) -> Setting:
    """The single process that computes what the gate's processes should, on one device of the same kind."""
    device = gate.shape.device
    return replace(
        gate,
        strategy=StrategySpec(name="reference"),
        shape=Shape(device=device, backend=BACKENDS[device][0]),
        computation=Computation(precision=gate.computation.precision),
    )


def asked_of_nodes(setting: Setting) -> dict[str, Any]:
    """What a preflight looks at: settings that agree in it share one."""
    groups = (setting.shape, setting.place, setting.computation)
    asked = {name: value for group in groups for name, value in bearing(group, "job").items()}
    # Named only where they are not the default: a run that needs less has a preflight of its own, and does not fail for
    # what another run needs.
    special: dict[str, Any] = {"loader": setting.feeding.loader} if setting.feeding.loader != Feeding.loader else {}
    special |= {"node_needs": setting.strategy.node_needs} if setting.strategy.node_needs else {}
    return {**asked, **special, "stack": setting.strategy.stack}
