"""A run that computes in more threads than are declared has no speed of its own."""

from __future__ import annotations

from chain_runs import Bench

pytest_plugins = ["chain_runs"]


def test_a_strategy_that_takes_more_threads_than_declared_is_a_fault(bench: Bench) -> None:
    more = bench.strategy("more", "torch.set_num_threads(3)", imports="import torch")
    chain = bench.chain("results", total_steps=4, **more)
    assert chain.forked().status == 1
    assert chain.fault()["error"].startswith("run run-1: it computes in 3 threads, and threads is 1; leave torch.set")
