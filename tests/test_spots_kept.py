"""The states that real trainings keep for their spot checks: over jobs that end, are killed, or start anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain_runs import Bench, Chain
from relay.base.files import write_json
from relay.run_folder.sealed import damage, manifest
from relay.run_folder.spots import Spot, Spots, states_folder
from relay.spec.spot_checks import SpotChecks
from spot_checked import kept, states

pytest_plugins = ["chain_runs"]

STEPS = 12
SHORT = {"total_steps": STEPS, "evaluate_every_steps": 5}


def planned(chain: Chain, *spots: Spot) -> Chain:
    """The same chain, begun by a job that was killed before its first step, with these spots drawn."""
    told = {"generation": "first", "code": "", "strategy_source": "", "adopted_from": None, "attempts": []}
    write_json(chain.work / "chain.json", told)
    Spots(list(spots)).write(chain.work)
    return chain


def asked(chain: Chain, **values: Any) -> Chain:
    """The same chain with other spot checks."""
    chain.run = replace(chain.run, spot_checks=SpotChecks(**values))
    chain.run.write(chain.declared / "run.json")
    return chain


@pytest.mark.slow
def test_a_run_keeps_its_states_before_and_after_its_spots(bench: Bench) -> None:
    values = {"strategy": "ddp", "launcher": "torchrun", "devices_per_node": 2}
    chain = bench.chain("run", **SHORT, **values).train(forked=True)
    known = kept(chain)
    assert {spot.kind for spot in known.spots} == {"random step", "end"}
    assert states(chain.work) == sorted(known.states)
    for step in known.states:
        assert damage(states_folder(chain.work) / f"step-{step}") is None
    assert sorted(known.seen) == sorted(known.steps)
    ranks = chain.run.shape.world_size
    assert {tuple(map(tuple, seen.parts)) for seen in known.seen.values()} == {((32 // ranks,),) * ranks}
    assert known.seconds > 0


@pytest.mark.slow
def test_rolling_checkpoints_never_remove_them(bench: Bench) -> None:
    chain = planned(bench.chain("run", **SHORT), Spot("random step", 2, 4), Spot("end", 10, 12)).train(forked=True)
    assert states(chain.work) == [2, 4, 10, 12]
    assert len(chain.checkpoints()) == 2


@pytest.mark.slow
def test_a_state_across_a_hop_is_kept_by_two_jobs(bench: Bench) -> None:
    chain = planned(bench.chain("run", **SHORT), Spot("hop", 5, 7), Spot("end", 10, 12))
    assert chain.forked(0, 6).status == 0
    assert states(chain.work) == [5]
    assert chain.forked(6, 12).status == 0
    assert states(chain.work) == [5, 7, 10, 12]
    assert sorted(kept(chain).seen) == [7, 11, 12]  # what was seen of step 6 went with the job
    told = manifest(states_folder(chain.work) / "step-5")
    assert told["chain"]["generation"] == "first"  # of the chain whose file lies beside the rolling checkpoints


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_spots(bench: Bench) -> None:
    mark = f"Path({str(bench.folder / 'died')!r})"
    kill = f"self.steps < 8 or {mark}.exists() or ({mark}.touch(), os.kill(os.getpid(), 9))"
    dies = bench.strategy("dies_once", kill)
    chain = bench.chain("run", **SHORT, **dies)
    planned(chain, Spot("random step", 5, 7), Spot("end", 10, 12))
    assert chain.forked().status == 75
    assert states(chain.work) == [5, 7]
    assert chain.forked(attempt=2).status == 0
    assert kept(chain).spots == [Spot("random step", 5, 7), Spot("end", 10, 12)]
    assert states(chain.work) == [5, 7, 10, 12]


@pytest.mark.slow
def test_keeping_states_changes_nothing_of_the_training(bench: Bench) -> None:
    with_spots = bench.chain("with", **SHORT).train(forked=True)
    without = asked(bench.chain("without", **SHORT), random_steps=0, hops=0, end=False).train(forked=True)
    assert losses(with_spots.work) == losses(without.work)


def losses(work: Path) -> dict[int, float]:
    from relay.spot_check.kept import kept_losses

    return kept_losses(work)
