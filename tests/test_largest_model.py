"""The largest model that fits: predicted, approached from below, and never beyond the budget."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import preloaded
from plans import planned
from relay.probe import job
from relay.probe.largest_model import DepthSearch
from relay.probe.tries import Tries
from relay.spec.run import SearchLimits
from relay.workflow.searches import depth_searches, shown_depths
from short_tasks import prepare_at_hand

PROCESS, STATES, LAYER, REST = 400e6, 16.0, 3e6, 1e6
GPT = {"task": "gpt-tiny"}


# The search


def searched(budget: float, *, extra: float = 1.0, most: int = 1000, bends: Callable[[int], float] = lambda _: 0.0):
    """A search where a model's states take `extra` times what the formula says, and `bends` more."""
    measured: dict[int, dict[str, Any]] = {}
    search = DepthSearch(1, 1, most, measured=measured, state_bytes=STATES)

    def fits(depth: int) -> bool:
        parameters = REST + depth * LAYER
        peak = PROCESS + extra * STATES * parameters + bends(depth)
        measured[depth] = {"peak_memory_bytes": peak, "budget_bytes": budget, "parameters": parameters}
        return peak <= budget

    search.run(fits)
    return search


@pytest.mark.parametrize(("extra", "blocks"), [(1.0, 2.5), (1.7, 61.5), (3.0, 300.5)])
def test_it_ends_at_the_deepest_that_fits_and_never_tries_a_deeper_one(extra: float, blocks: float) -> None:
    search = searched(PROCESS + extra * STATES * (REST + blocks * LAYER), extra=extra)
    assert search.largest == int(blocks)
    assert search.too_large is None  # known from what was measured, and not by trying
    assert len(search.sizes) <= 5
    assert search.predicted() == pytest.approx(extra * blocks, rel=0.4)


def test_what_grows_faster_than_it_did_at_first_is_found_by_halving() -> None:
    search = searched(PROCESS + STATES * (REST + 100 * LAYER), bends=lambda depth: 2e9 * (depth > 70))
    assert 64 <= search.largest <= 70 < search.too_large <= search.largest + max(1, search.largest // 16)


@pytest.mark.parametrize(("strategy", "devices"), [("single_gpu", 1), ("model_parallel_in_process", 2)])
def test_a_depth_is_a_network_of_so_many_blocks(strategy: str, devices: int) -> None:
    """The batch stays that of all devices, also of those that one process has."""
    (search,) = depth_searches(planned({"strategy": strategy, "devices_per_node": devices}, gpus=2, **GPT)).values()
    deep = DepthSearch.of_size(search, 9)
    assert deep.task.options == {**search.task.options, "depth": 9}
    assert deep.batch == search.batch


# A real search, on CPUs


@pytest.mark.slow
def test_two_ranks_search_within_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned({"strategy": "fsdp", "devices_per_node": 2}, **GPT)
    ((name, search),) = depth_searches(made).items()
    prepare_at_hand(search.task, search.dataset, tmp_path / "datasets" / search.dataset.directory_name)
    spec, output = tmp_path / f"{name}.run.json", tmp_path / "largest_model" / f"{name}.json"
    limits = SearchLimits(unit=1, first=1, most=6, minutes=3, memory_fraction=1.0, node_memory_mb=100_000)
    replace(search, limits=limits).write(spec)
    monkeypatch.setattr(job, "Tries", lambda *given: Tries(*given, start=preloaded.start))
    assert job.run_probe(spec, tmp_path, output, kind=DepthSearch) == 0
    found = json.loads(output.read_text())
    assert (found["depth"], found["limited_by"], found["reason"]) == (6, "most", None)
    assert [one["depth"] for one in found["tried"]] == [1, 2, 6]
    assert [one["parameters"] for one in found["tried"]] == [86_976, 136_960, 336_896]
    assert found["predicted_depth"] > 1000
    assert "6 blocks, the most to try, 0.3369 M parameters; by the formula" in shown_depths(made, {name: found})
