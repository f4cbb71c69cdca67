"""This process's random generators: torch's, also on GPUs, Python's, and numpy's where the script uses it."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from typing import Any

import torch

_NUMPYS = {"numpy.random._generator.Generator", "numpy.random.mtrand.RandomState"}


def generators(further: Sequence[Own] = ()) -> dict[str, Any]:
    """The state of every generator, as tensors and plain values, which `weights_only` reads.

    `further` are the user's own, such as a loader's.
    """
    version, python, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
        "python": [version, list(python), gauss],
        "numpy": _numpy() if "numpy" in sys.modules else None,
        "further": [each.get_state() for each in further],
    }


def restore(state: dict[str, Any], further: Sequence[Own] = ()) -> None:
    """Set every generator to the state that `generators` told."""
    torch.set_rng_state(state["torch"])
    for number, of_device in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(of_device, number)
    version, python, gauss = state["python"]
    random.setstate((version, tuple(python), gauss))
    if state["numpy"] is not None:
        _restore_numpy(state["numpy"])
    for each, its_state in zip(further, state["further"], strict=False):
        each.set_state(its_state)


class Own:
    """A generator that a script made for itself, for its loader or given to `resume`: torch's, numpy's or Python's."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        self.numpys = getattr(generator, "bit_generator", None)  # of numpy's Generator, and not of its RandomState

    @classmethod
    def holds(cls, thing: Any) -> bool:
        """Whether it is such a generator."""
        names = {f"{each.__module__}.{each.__name__}" for each in type(thing).__mro__}
        return isinstance(thing, (torch.Generator, random.Random)) or not names.isdisjoint(_NUMPYS)

    def state_dict(self) -> dict[str, Any]:
        """Its state, as `get_state` has it."""
        return {"state": self.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        self.set_state(state["state"])

    def get_state(self) -> torch.Tensor | str:
        """Its state, as a tensor or a text."""
        if isinstance(self.generator, torch.Generator):
            return self.generator.get_state()
        if isinstance(self.generator, random.Random):
            return json.dumps(self.generator.getstate())
        state = self.numpys.state if self.numpys else self.generator.get_state(legacy=False)
        return json.dumps(state, default=lambda array: array.tolist())

    def set_state(self, state: torch.Tensor | str) -> None:
        """Go on from a state that `get_state` gave."""
        if isinstance(state, torch.Tensor):
            self.generator.set_state(state)
        elif isinstance(self.generator, random.Random):
            version, python, gauss = json.loads(state)
            self.generator.setstate((version, tuple(python), gauss))
        elif self.numpys:
            self.numpys.state = json.loads(state)
        else:
            self.generator.set_state(json.loads(state))


def _numpy() -> dict[str, Any]:
    import numpy as np

    state: dict[str, Any] = np.random.get_state(legacy=False)
    key = torch.from_numpy(state["state"]["key"].astype(np.int64))
    return {**state, "state": {**state["state"], "key": key}}


def _restore_numpy(state: dict[str, Any]) -> None:
    import numpy as np

    key = state["state"]["key"].numpy().astype(np.uint32)
    np.random.set_state({**state, "state": {**state["state"], "key": key}})
