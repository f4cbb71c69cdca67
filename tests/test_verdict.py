"""What a gate's verdict is made of: limits, differences, bytes sent, who did the work; and each own batch's part."""

import math
import socket
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gate_runs import FEW_STEPS, Gates, planned
from relay.base.ending import INTERRUPTED
from relay.datasets.manifest import digest
from relay.equivalence import judged
from relay.equivalence.course import Observed
from relay.equivalence.division import divided
from relay.equivalence.figures import apart, difference, distance, each_apart, leaves_of, scaled, share
from relay.equivalence.trials import Trial
from relay.equivalence.verdict import Part, Verdict, cannot_run
from relay.process import system
from relay.run_folder.faults import Fault
from relay.run_folder.verdicts import CAUSES, all_problems, of_batch, refuses
from relay.spec.run import OwnBatch
from relay.strategies.base import Replica
from relay.task.mean_loss import LIMITS, mean_over_samples


def with_losses(figure: float) -> Verdict:
    """A verdict of one part."""
    verdict = Verdict("a-gate")
    verdict.add(Part("algorithm", "losses", "largest loss difference", figure, 1e-9))
    return verdict


def test_a_part_passes_up_to_its_limit_and_what_is_no_number_never() -> None:
    for figure, passes in ((0.0, True), (1e-9, True), (1.1e-9, False), (math.inf, False)):
        told = with_losses(figure).as_dict()
        assert (told["equivalent"], told["parts"][0]["passed"], not told["problems"]) == (passes, passes, passes)
        assert told["max_loss_difference"] == figure
    told = "algorithm: losses: largest loss difference: nan, allowed is 1e-09"
    assert with_losses(math.nan).problems == [told]


def test_a_difference_of_shapes_is_infinite_one_nan_is_nan_and_the_imaginary_part_counts() -> None:
    assert difference(torch.zeros(3), torch.zeros(4)) == math.inf
    assert math.isnan(difference(torch.tensor([0.0, math.nan, 5.0]), torch.zeros(3)))
    assert difference(torch.tensor([1.0, -2.0], dtype=torch.float32), torch.zeros(2, dtype=torch.float64)) == 2.0
    assert difference(torch.tensor([1 + 1j]), torch.tensor([1 + 5j])) == 4.0


def test_infinities_that_are_the_same_are_no_difference_as_those_of_a_mask() -> None:
    mask, other = torch.tensor([-math.inf, 7.0, -math.inf]), torch.tensor([-math.inf, 8.0, 0.0])
    assert (difference(mask, mask), scaled(mask, mask), distance([(mask, mask)])) == (0.0, 0.0, 0.0)
    assert scaled(mask[:2], other[:2]) == 1 / 8
    assert difference(mask, other) == math.inf


@pytest.mark.parametrize(
    ("off", "rounding", "equivalent"),
    [(1e-12, 0.0, True), (1e-10, 0.0, False), (9e-11, 1e-11, True), (2e-9, 1e-11, False)],
)
def test_parameters_that_hardly_move_are_compared_with_how_far_they_move(
    off: float, rounding: float, equivalent: bool
) -> None:
    """As in fine-tuning by AdamW at a rate of 1e-7, where a weight decay that is lost moves them by less than 1e-9."""
    verdict, weights = Verdict("a-gate"), torch.rand(100, dtype=torch.float64)
    trial = Trial(name="algorithm", precision="fp64", steps=20, limit=1e-9, compares=("parameters",))
    reference = {"parameters": {"weight": weights}, "update": 1e-5, "rounding": {"parameters": rounding}}
    judged._compare(verdict, trial, [], {"weight": weights + off}, reference)
    assert verdict.as_dict()["equivalent"] is equivalent, verdict.parts


def test_a_distance_is_over_all_parameters_and_never_finite_where_one_does_not_fit() -> None:
    pairs = [(torch.tensor([3.0]), torch.zeros(1)), (torch.zeros(2, 2), torch.tensor([[0.0, -4.0], [0.0, 0.0]]))]
    assert distance(pairs) == 5.0
    assert math.isnan(distance([*pairs, (torch.tensor(math.nan), torch.tensor(0.0))]))
    assert distance([*pairs, (torch.zeros(3), torch.zeros(4))]) == math.inf


def test_complex_outputs_are_compared_and_something_is_infinitely_more_than_nothing() -> None:
    one, other = (leaves_of({"spectrum": torch.tensor([[1 + 1j], [imaginary]])}, {}) for imaginary in (2j, 2.5j))
    assert apart(one, other) == 0.5 / 2.5
    assert (share(1.0, 4.0), share(1e-9, 0.0), share(0.0, 0.0)) == (0.25, math.inf, 0)


def test_whole_numbers_that_differ_count_by_their_part_and_a_single_one_is_a_count() -> None:
    """As classes or a mask; a slice counts its own words."""
    classes = (torch.tensor([[1, 2], [3, each]]) for each in (4, 5))
    outputs = [{"classes": each, "words": torch.tensor(7)} for each in classes]
    one, other = (leaves_of(each, {}, whole=True) for each in outputs)
    assert each_apart(one, other) == [0.25]
    assert leaves_of(outputs[0], {}) == [], "nobody measures how many of them rounding changes"
    assert each_apart([torch.ones(2, dtype=torch.bool)], [torch.ones(3, dtype=torch.bool)]) == [math.inf]


@pytest.mark.parametrize(
    ("off", "rounding", "passed", "unprovable", "notes"),
    [
        ([0.0, 0.25], [1e-16, 0.0], False, False, 0),
        ([0.0, 0.25], [1e-16, 0.25], True, False, 1),
        ([2e-9, 0.0], [1e-10, 0.0], True, False, 0),
        ([2e-9, 0.0], [2e-5, 0.0], True, True, 0),
    ],
)
def test_outputs_that_rounding_moves_are_not_proven_and_no_strategy_is_blamed(
    off: list[float], rounding: list[float], passed: bool, unprovable: bool, notes: int
) -> None:
    verdict, outputs = Verdict("a-gate"), [torch.ones(4), torch.ones(4, dtype=torch.long)]
    judged._outputs(verdict, off, {"outputs": outputs, "outputs_rounding": rounding})
    assert (not verdict.problems, bool(verdict.unprovable), len(verdict.notes)) == (passed, unprovable, notes)


@pytest.mark.parametrize(("far", "power", "is_mean"), [(1e6, 1.0, True), (0.0, 1 + 1e-10, False)])
def test_a_loss_that_rounds_coarsely_is_still_a_mean(far: float, power: float, is_mean: bool) -> None:
    batch = (torch.randn(16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)),)
    task: Any = SimpleNamespace(
        dtype=torch.float64,
        outputs=lambda _, given: given[0],
        loss=lambda outputs, _: ((outputs.exp() + far).mean() - far) ** power,
    )
    assert (mean_over_samples(task, torch.nn.Identity(), batch) <= LIMITS[torch.float64]) is is_mean


@pytest.mark.parametrize("order_matters", [1e-2, 5e-4])
def test_a_loss_of_the_order_of_its_samples_is_no_mean(order_matters: float) -> None:
    """Nor where the model refuses another order, as of sequences that are packed."""
    batch = (torch.randn(16, generator=torch.Generator().manual_seed(1)),)

    def outputs(_: object, given: Any) -> torch.Tensor:
        if order_matters < 1e-3 and len(given[0]) == 16 and not given[0].equal(batch[0]):
            raise RuntimeError("`lengths` array must be sorted in decreasing order when `enforce_sorted` is True.")
        return given[0]

    def loss(outputs: torch.Tensor, _: object) -> torch.Tensor:
        return outputs.mean() + order_matters * (outputs[1:] * outputs[:-1]).mean()

    task: Any = SimpleNamespace(dtype=torch.float32, outputs=outputs, loss=loss)
    assert mean_over_samples(task, torch.nn.Identity(), batch) > LIMITS[torch.float32]


def undivided(strategy: str, told: list[Observed], held: dict[str, int]) -> list[str]:
    """The problems with who did the work of a step of four samples."""
    data: Any = SimpleNamespace(run=planned(strategy)[0], indices=lambda _step: torch.arange(4))
    divided(verdict := Verdict("gate"), Trial(name="algorithm", precision="fp64", steps=1), told, data, held)
    return verdict.problems


def test_replicas_send_about_as_much_as_their_gradients_hold() -> None:
    for sent_bytes, problems in ((1000, 0), (999, 1)):
        of_rank: dict[str, Any] = {"bytes_sent": sent_bytes, "footprint": {"gradients": 10_000}}
        told = [Observed(Replica(n, 2), samples=[[2 * n, 2 * n + 1]], **of_rank) for n in (0, 1)]
        assert len(undivided("ddp", told, {"gradients": 10_000})) == problems


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
    seen = Observed(Replica(0, 1), samples=[[0, 1, 2, 3]], used_bytes=used)
    told = [f"division of work: rank 0 left its GPU {place} unused" for place in problems]
    assert undivided("cpu", [seen], {}) == told


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        ("aten.mul.Tensor: in-place operations " + "DTensor " * 99, "take an optimiser and layers of torch's, or a "),
        ("your module has parameters that were not used in producing loss.", "find_unused_parameters: true"),
        ("aten.mm.default got mixed torch.Tensor and DTensor", "a divided parameter, which is a DTensor, meets an"),
        ("Cannot flatten unevenly sharded tensor: dimension 0 (size 5)", "where a loss reads parameters, let it make"),
        ("Cannot copy out of meta tensor; no data!", "a stage reads a parameter that another process holds"),
    ],
)
def test_who_cannot_run_a_training_is_told_what_helps_and_no_pages_of_shapes(said: str, helps: str) -> None:
    error = f"RuntimeError: {said}"
    told = cannot_run(Fault(error=error, rank=0, kind="RuntimeError", mistake=False, time=0.0), "")
    assert told.startswith(f"it cannot run this training: {error[:60]}")
    assert helps in told
    assert len(told) < 750
    of_a_stage = "RuntimeError: Failed to run stage backward"
    wrapped = Fault(
        error=of_a_stage, rank=0, kind="RuntimeError", mistake=False, time=0.0, text=f"{of_a_stage}; {error}"
    )
    assert helps in cannot_run(wrapped, "")


# What the gate shows at the runs' own batch sizes, and which run its verdict is about.


SMALL, LARGE = (OwnBatch(global_batch_size=size, learning_rate=0.02) for size in (16, 64))


@pytest.mark.slow
def test_a_strategy_that_is_wrong_at_a_large_batch_only_is_struck_out_for_that_batch_only(gates: Gates) -> None:
    verdict = gates.verdict("wrong_beyond_eight", steps=FEW_STEPS, global_batch_size=[16, 64])
    assert verdict["problems"] == []
    assert verdict["equivalent"] is False
    assert (verdict["versions"]["torch"], verdict["dataset"]) == (torch.__version__, digest(gates.digits))
    assert of_batch(verdict, SMALL)["equivalent"] is True
    large = of_batch(verdict, LARGE)
    assert large["equivalent"] is False
    failed = {part["name"] for part in large["parts"] if not part["passed"]}
    assert {"batch 64: algorithm: losses", "batch 64: own precision: losses"} <= failed
    said = "batch 64: division of work: step 0: 16 samples reached the loss, the global batch has 64: 0 more than once"
    assert any(problem.startswith(said) for problem in large["problems"])


@pytest.mark.slow
def test_a_strategy_that_finds_no_memory_at_a_large_batch_has_proven_what_came_before(gates: Gates) -> None:
    asked = {"steps": FEW_STEPS, "global_batch_size": [16, 32, 64], "options": {"fault": "NoRoom"}}
    assert gates.judge("wrong", **asked)[0] == INTERRUPTED  # others may have had the memory
    verdict = gates.verdict("wrong", attempt=2, **asked)
    assert (verdict["equivalent"], verdict["problems"]) == (False, [])
    assert of_batch(verdict, SMALL)["equivalent"] is True
    middle, large = (of_batch(verdict, replace(SMALL, global_batch_size=size)) for size in (32, 64))
    assert middle["problems"] == [
        "batch 32: it cannot run this training, and failed twice, the second time alone: OutOfMemoryError: CUDA out "
        "of memory. Tried to allocate 80.00 GiB"
    ]
    assert large["problems"] == ["batch 64: the gate has trained no step at it"]
    assert not list(gates.results.rglob("unfinished.json"))


def two_batches(unprovable: str | None = None) -> dict[str, Any]:
    """The verdict of a gate whose larger batch failed."""
    verdict = replace(with_losses(1e-15), unprovable=unprovable)
    verdict.figures["samples_per_rank"] = [8.0, 8.0]
    for own, figure in ((SMALL, 1e-15), (LARGE, 1e-3)):
        found = verdict.of_batch(own)
        found.add(Part("algorithm", "losses", "largest loss difference", figure, 1e-9))
        found.figures["samples_per_rank"] = [own.global_batch_size / 2] * 2
    return verdict.as_dict() | {"strategy_source": "5eed"}


def test_a_run_is_judged_by_the_shared_parts_and_those_of_its_own_batch() -> None:
    verdict = two_batches()
    assert verdict["equivalent"] is False
    assert [own["equivalent"] for own in verdict["own_batches"]] == [True, False]
    small, large = (of_batch(verdict, own) for own in (SMALL, LARGE))
    assert (small["equivalent"], small["problems"], small["samples_per_rank"]) == (True, [], [8.0, 8.0])
    assert [part["name"] for part in small["parts"]] == ["algorithm: losses", "batch 16: algorithm: losses"]
    problem = f"batch 64: {CAUSES['algorithm']}algorithm: losses: largest loss difference: 1.0e-03, allowed is 1e-09"
    assert (large["equivalent"], large["problems"], large["samples_per_rank"]) == (False, [problem], [32.0, 32.0])
    assert all_problems(verdict) == [problem]


def test_what_is_unprovable_is_wrong_at_the_batch_alone_at_which_something_is_wrong() -> None:
    found = two_batches(unprovable="rounding moves it")
    small, large = (of_batch(found, own) for own in (SMALL, LARGE))
    assert ([found["unprovable"], small["unprovable"], large["unprovable"]]) == [None, "rounding moves it", None]
    assert list(map(refuses, (found, small, large))) == [True, False, True]


def test_a_batch_at_which_no_step_was_trained_is_not_proven() -> None:
    for own in (replace(SMALL, global_batch_size=32), replace(SMALL, learning_rate=0.08)):
        found = of_batch(two_batches(), own)
        assert found["equivalent"] is False
        assert found["problems"] == [f"batch {own.global_batch_size}: the gate has trained no step at it"]
