"""What a gate's verdict is made of: limits, differences, bytes sent, and who did the work."""

from __future__ import annotations

import math
import socket
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gate_runs import planned
from relay.equivalence.course import Observed
from relay.equivalence.division import divided
from relay.equivalence.figures import apart, difference, distance, leaves_of, share
from relay.equivalence.raised import cannot_run
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Part, Verdict
from relay.process import system
from relay.run_folder.faults import Fault
from relay.strategies.base import Replica


@pytest.mark.parametrize(("figure", "passes"), [(1e-9, True), (1.1e-9, False), (math.inf, False), (math.nan, False)])
def test_a_part_passes_up_to_its_limit(figure: float, passes: bool) -> None:
    verdict = Verdict("a-gate")
    verdict.add(Part("algorithm", "losses", "largest loss difference", figure, 1e-9))
    told = verdict.as_dict()
    assert told["equivalent"] is passes
    assert told["parts"][0]["passed"] is passes
    assert told["max_loss_difference"] is figure
    assert bool(told["problems"]) is not passes


def test_a_difference_of_shapes_is_infinite_and_one_nan_is_nan() -> None:
    assert difference(torch.zeros(3), torch.zeros(4)) == math.inf
    assert math.isnan(difference(torch.tensor([0.0, math.nan, 5.0]), torch.zeros(3)))
    assert difference(torch.tensor([1.0, -2.0], dtype=torch.float32), torch.zeros(2, dtype=torch.float64)) == 2.0


def test_a_distance_is_over_all_parameters_and_never_finite_where_one_does_not_fit() -> None:
    pairs = [(torch.tensor([3.0]), torch.zeros(1)), (torch.zeros(2, 2), torch.tensor([[0.0, -4.0], [0.0, 0.0]]))]
    assert distance(pairs) == 5.0
    assert math.isnan(distance([*pairs, (torch.tensor(math.nan), torch.tensor(0.0))]))
    assert distance([*pairs, (torch.zeros(3), torch.zeros(4))]) == math.inf


def test_complex_outputs_are_compared_and_something_is_infinitely_more_than_nothing() -> None:
    one, other = (leaves_of({"spectrum": torch.tensor([[1 + 1j], [imaginary]])}, {}) for imaginary in (2j, 2.5j))
    assert apart(one, other) == 0.5 / 2.5
    assert (share(1.0, 4.0), share(1e-9, 0.0), share(0.0, 0.0)) == (0.25, math.inf, 0)


def test_replicas_send_about_as_much_as_their_gradients_hold() -> None:
    run, trial = planned("ddp")[0], Trial(name="algorithm", precision="fp64", steps=1)
    data: Any = SimpleNamespace(run=run, indices=lambda _step: torch.arange(4))
    for sent_bytes, problems in ((1000, 0), (999, 1)):
        held = {"gradients": 10_000}
        told = [
            Observed(Replica(n, 2), samples=[[2 * n, 2 * n + 1]], bytes_sent=sent_bytes, footprint=held) for n in (0, 1)
        ]
        verdict = Verdict("gate")
        divided(verdict, trial, told, data, held)
        assert len(verdict.problems) == problems, verdict.problems


def test_bytes_sent_are_counted_over_tcp_alone() -> None:
    """Over sockets that were open before and over new ones; not what is received, nor what stays in the machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        for early in (True, False):
            before = system.sent_by_socket()
            sender = socket.create_connection(server.getsockname())
            receiver, _ = server.accept()
            with closing(sender), closing(receiver):
                if early:
                    before = system.sent_by_socket()
                assert system.sent_since(before) == 0
                for _ in range(30):
                    sender.sendall(bytes(10_000))
                    _receive(receiver, 10_000)
                assert 300_000 <= system.sent_since(before) < 330_000  # a few more where the kernel sends some again
                mine, yours = socket.socketpair()
                with closing(mine), closing(yours):
                    counted = system.sent_since(before)
                    mine.sendall(bytes(50_000))
                    _receive(yours, 50_000)
                    assert system.sent_since(before) == counted


def _receive(connection: socket.socket, count: int) -> None:
    while count:
        count -= len(connection.recv(count))


@pytest.mark.parametrize(("used", "problems"), [([], []), ([10], []), ([10, 7], []), ([10, 0], [1])])
def test_a_process_that_leaves_one_of_its_gpus_unused_is_told(used: list[int], problems: list[int]) -> None:
    """On recorded bytes: no GPU is needed to judge them."""
    trial = Trial(name="algorithm", precision="fp64", steps=1)
    data: Any = SimpleNamespace(run=planned("cpu")[0], indices=lambda _step: torch.arange(4))
    seen = Observed(Replica(0, 1), samples=[[0, 1, 2, 3]], used_bytes=used)
    verdict = Verdict("gate")
    divided(verdict, trial, [seen], data, {})
    assert verdict.problems == [f"division of work: rank 0 left its GPU {place} unused" for place in problems]


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        ("aten.mul.Tensor: in-place operations " + "DTensor " * 99, "take an optimiser and layers of torch's, or a "),
        ("your module has parameters that were not used in producing loss.", "find_unused_parameters: true"),
        ("aten.mm.default got mixed torch.Tensor and DTensor", "a divided parameter, which is a DTensor, meets an"),
        ("Cannot copy out of meta tensor; no data!", "a stage reads a parameter that another process holds"),
    ],
)
def test_who_cannot_run_a_training_is_told_what_helps_and_no_pages_of_shapes(said: str, helps: str) -> None:
    error = f"RuntimeError: {said}"
    told = cannot_run(Fault(error=error, rank=0, kind="RuntimeError", mistake=False, time=0.0), "")
    assert told.startswith(f"it cannot run this training: {error[:60]}")
    assert helps in told
    assert len(told) < 750
