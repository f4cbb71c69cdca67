"""Spot checks of the short runs of `chain_runs`, each in a process of its own that has imported torch already."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import preloaded
from chain_runs import Chain
from relay.base.files import read_json
from relay.planning.proofs import spot_checked
from relay.run_folder.spots import Spots, states_folder
from relay.spec.run import SpotCheck, Training
from relay.spot_check.job import run_spot_check


def verdict(*chains: Chain, attempt: int = 1, beside: Sequence[Chain] = ()) -> list[dict[str, Any]]:
    """What the spot check of a setting finds of these runs of it; `beside` are other settings'."""
    first = chains[0]
    own = {each.name: getattr(first.run, each.name) for each in fields(Training)}
    own["shape"] = spot_checked(first.run, 1).shape
    specification = SpotCheck(**own | {"id": first.run.setting_id})
    place = first.results / "equivalence" / "spot_checks" / first.run.setting_id
    specification.write(place / "spot_check.json")
    runs, others = ([chain.run.id for chain in each] for each in (chains, beside))
    given = {"attempt": attempt, "start": preloaded.start, "beside": others}
    assert run_spot_check(place / "spot_check.json", runs, first.results, place / "verdict.json", **given) == 0
    return read_json(place / "verdict.json")["runs"]


def kept(chain: Chain) -> Spots:
    """What the run has kept for its spot check."""
    return Spots.read(chain.work)


def figures(found: dict[str, Any], name: str) -> list[float]:
    """A figure of all spots of a run."""
    return [part["figure"] for spot in found["spots"] for part in spot["parts"] if part["name"] == name]


def states(work: Path) -> list[int]:
    """The steps of which a state is kept."""
    return sorted(int(place.name.removeprefix("step-")) for place in states_folder(work).glob("step-*"))
