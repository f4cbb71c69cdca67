"""Every strategy goes on from its checkpoint bit for bit, and from another one's within rounding."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chain_results import assert_same, difference, result
from chain_runs import BUILT_IN, Bench, Chain
from own_tasks import spec
from relay.base.errors import UserError
from relay.base.files import read_json
from relay.run_folder import run_chain
from relay.spec import strategy_files
from relay.spec.requirements import Requirements
from relay.training.adoption import adopt
from results_tree import status
from stacks import of_stack

GPT, MIXTURE = (spec(name, depth=2, global_batch_size=8) for name in ("gpt-tiny", "gpt-moe-tiny"))
STEPS, CUT = 8, 4
NEEDS = {name: strategy_files.read(path) for name, path in of_stack("torch").items()}
# What else changes what a process keeps between steps.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp, powersgd": ("ddp", {"options": {"compression": "powersgd"}}),
    "pipeline, fp16": ("pipeline", {"precision": "fp16"}),
}
# Each of these alone has its parts; how other pipelines resume is in `test_pipelines.py`.
LONG = ("fsdp_tensor_parallel", "tensor_parallel", "ddp, powersgd", "expert_parallel", "pipeline, fp16")


def processes(needs: Requirements) -> int:
    return 1 if needs.processes == "one" else max(2, needs.least_devices)


def setting(strategy: str, world_size: int | None = None) -> dict[str, Any]:
    """The strategy's run on CPUs, with the fewest processes among which it divides anything."""
    needs = NEEDS[strategy]
    count = world_size or processes(needs)
    several = {"launcher": "torchrun"} if count > 1 else {}
    devices = count if needs.processes == "one per device" else 1
    chosen = {"strategy": strategy, "strategy_file": str(BUILT_IN / f"{strategy}.py"), "devices_per_node": devices}
    return chosen | several | {"total_steps": STEPS, "evaluate_every_steps": STEPS}


def begun(bench: Bench, name: str, strategy: str, /, **values: Any) -> Chain:
    """A chain of the strategy, on the model that it needs."""
    its = MIXTURE if "experts" in NEEDS[strategy].needs else GPT
    return bench.chain(name, values.pop("its", its), **(setting(strategy) | values))


# On the same devices

EACH_STEP = "import signal\nfrom relay.chain import peers\npeers.AGREE_SECONDS = 0.0"
STOP_ONCE = """if self.steps == {cut} and self.ranks.rank == 0 and not Path({flag!r}).exists():
            Path({flag!r}).touch()
            os.kill(os.getpid(), signal.SIGTERM)"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["fsdp", *(pytest.param(case, marks=pytest.mark.long) for case in LONG)])
def test_interrupted_and_resumed_it_ends_bit_for_bit_as_uncut(bench: Bench, case: str) -> None:
    """In new processes, with checkpoints written in the background at every step that has none to wait for.

    Only the long cases cut these strategies short.
    """
    strategy, values = VARIANTS.get(case, (case, {}))
    stop = STOP_ONCE.format(cut=CUT, flag=str(bench.folder / "stopped"))
    cut, uncut = (
        begun(bench, name, strategy, **(values | bench.strategy(name, before, base=strategy, imports=EACH_STEP)))
        for name, before in (("cut", stop), ("uncut", "pass"))
    )
    ended = cut.forked()
    assert ended.status == 75, ended.errors
    assert f"stopped at step {CUT} of {STEPS} (SIGTERM)" in ended.errors
    measured = dict(run_chain.measured(cut.work))
    ended = cut.forked(attempt=2)
    assert ended.status == 0, ended.errors
    assert cut.started_at() == [0, CUT]
    assert run_chain.measured(cut.work) == measured
    uncut.measured(measured)  # where stages are cut follows from what was measured: the same for both
    assert_same(result(cut), result(uncut.train(forked=True)))


# From another strategy, or on another number of devices


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory: pytest.TempPathFactory, prepared: Path) -> Iterator[Bench]:
    made = Bench(tmp_path_factory.mktemp("resume"), prepared)
    try:
        yield made
    finally:
        made.kill()


Sources = Callable[..., Chain]


@pytest.fixture(scope="module")
def sources(module_bench: Bench) -> Sources:
    """Trains a strategy half way, once: in float64, where rounding hides nothing."""
    made: dict[str, Chain] = {}

    def source(strategy: str, world_size: int | None = None, **values: Any) -> Chain:
        name = f"{strategy}-{world_size}-{values.get('its', GPT).name}"
        if name not in made:
            chosen = setting(strategy, world_size) | {"checkpoint_minutes": 60.0} | values
            made[name] = begun(module_bench, name, strategy, precision="fp64", **chosen)
            ended = made[name].forked(0, CUT)
            assert ended.status == 0, ended.errors
        return made[name]

    return source


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (("fsdp", 2), ("cpu", 1)),
        pytest.param(("fsdp", 2), ("fsdp_tensor_parallel", 4), marks=pytest.mark.long),
        pytest.param(("expert_parallel", 2), ("expert_parallel", 4), marks=pytest.mark.long),
    ],
    ids=lambda end: f"{end[0]} {end[1]}",
)
def test_another_run_goes_on_from_it_within_rounding(
    bench: Bench, sources: Sources, source: tuple[str, int], target: tuple[str, int]
) -> None:
    """Parameters, the optimizer's state and the losses of the steps still to go are those of one uncut process.

    Only the long cases divide a checkpoint otherwise, among more processes.
    """
    its = MIXTURE if "expert_parallel" in (source[0], target[0]) else GPT
    began = sources(*source, its=its)
    chain = began.planned(f"{target[0]}-{target[1]}-from-{source[0]}-{source[1]}", **setting(*target))
    assert adopt(chain.results, began.run.id, chain.run.id) == CUT
    ended = chain.forked(0, STEPS)
    assert ended.status == 0, ended.errors
    assert chain.started_at() == [CUT]
    uncut = begun(bench, "uncut", "cpu", precision="fp64", its=its).train(forked=True)
    assert difference(result(chain), result(uncut)) <= 1e-9


# The hand-over itself


@pytest.mark.slow
def test_segments_that_the_other_run_has_done_need_no_job_and_the_chain_says_from_where(sources: Sources) -> None:
    began = sources("cpu", 1)
    chain = began.planned("adopting")
    assert adopt(chain.results, began.run.id, chain.run.id, dry=True) == CUT
    assert not chain.work.exists()
    adopt(chain.results, began.run.id, chain.run.id)
    for first, last in ((0, 2), (2, CUT), (CUT, 6)):
        assert chain.forked(first, last).status == 0
        assert read_json(chain.declared / f"step-{last}.json")["step"] == last
    told = read_json(chain.work / "chain.json")
    assert len(told["attempts"]) == 1
    assert chain.started_at() == [CUT]
    origin = {key: told["adopted_from"][key] for key in ("run", "step", "strategy", "world_size")}
    assert origin == {"run": began.run.id, "step": CUT, "strategy": "cpu", "world_size": 1}

    with pytest.raises(UserError, match="it has begun, and goes on from its own checkpoints"):
        adopt(chain.results, began.run.id, chain.run.id)
    chain.start_anew("second")  # as `--forcerun start`: from the very start
    assert chain.forked(0, 3).status == 0
    assert chain.started_at() == [0]
    assert read_json(chain.work / "chain.json")["adopted_from"] is None


@pytest.mark.slow
def test_an_adopted_checkpoint_that_was_damaged_since_is_no_start_from_nothing(sources: Sources) -> None:
    began = sources("cpu", 1)
    chain = began.planned("damaged")
    adopt(chain.results, began.run.id, chain.run.id)
    (chain.work / f"step-{CUT}" / "rank-0.pt").write_bytes(b"")
    ended = chain.forked(0, STEPS)
    assert ended.status == 1
    assert f"no sound checkpoint for steps {CUT} to {STEPS}" in ended.errors


@pytest.mark.slow
def test_what_does_not_fit_is_one_line(sources: Sources) -> None:
    began = sources("cpu", 1)
    for number, (values, told) in enumerate((
        ({"global_batch_size": 16}, "global_batch_size is 16, 8 in run"),
        ({"its": replace(GPT, learning_rate=0.5)}, "task.learning_rate is 0.5, "),
        ({"total_steps": CUT}, f"total_steps is {CUT}, and so far run"),
        ({"total_steps": CUT - 1}, f"no sound checkpoint in .* up to step {CUT - 1}"),
    )):  # fmt: skip
        chain = began.planned(f"unfit-{number}", **values)
        with pytest.raises(UserError, match=rf"^run .*{told}") as caught:
            adopt(chain.results, began.run.id, chain.run.id)
        assert "\n" not in str(caught.value)
        assert not chain.work.exists()


@pytest.mark.slow
def test_the_command_says_what_it_did(sources: Sources, capsys: pytest.CaptureFixture[str]) -> None:
    began = sources("cpu", 1)
    chain = began.planned("by-command")
    words = ["--run", chain.run.id, "--results", str(chain.results)]
    # Twice: while it has not begun, it may be handed another one.
    for more, goes in (["--dry-run"], "could go"), ([], "goes"), ([], "goes"):
        assert status("adopt", "--source", began.run.id, *words, *more) == 0
        assert capsys.readouterr().out == f"run by-command {goes} on from step {CUT} of run run-1\n"
    assert status("adopt", "--source", "unknown", *words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: run unknown: ")
