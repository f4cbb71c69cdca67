"""What a strategy of one's own can have wrong: each is told with its place, once."""

from __future__ import annotations

import pytest

from chain_runs import DDP, Bench

pytest_plugins = ["chain_runs"]


@pytest.mark.slow
@pytest.mark.parametrize(("processes", "call"), [({}, "raise SystemExit(0)"), (DDP, "os._exit(0)")], ids=["one", "two"])
def test_a_process_that_ends_itself_is_a_fault_and_no_lost_node(
    bench: Bench, processes: dict[str, object], call: str
) -> None:
    ends = f"if self.steps == 2 and self.ranks.rank == 0:\n            {call}"
    strategy = bench.strategy("mine", ends, base="ddp" if processes else "cpu")
    chain = bench.chain("results", total_steps=6, **(processes | strategy))
    assert chain.forked().status == 1
    name = "os._exit(0)" if "_exit" in call else "sys.exit(0)"
    assert chain.fault()["error"] == (
        f"EndedItself: {name} was called in the middle of the work; return, or raise an error"
    )
    assert "in train_step" in chain.fault()["traceback"]
    assert not (chain.declared / "step-6.json").exists()
