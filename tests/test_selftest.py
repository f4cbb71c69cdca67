"""The self-test: it knows every strategy, tells wrong from right, and ends in one page whatever has failed."""

from pathlib import Path

import pytest

from living import well
from plans import CPU, DDP, ROOT, planned
from relay.base.ending import FAULT, INTERRUPTED, Ending
from relay.base.files import write_json
from relay.config.reading import read_config
from relay.selftest import rows
from relay.selftest.job import compared, judged
from relay.selftest.parts import FAULTS, RESUME
from relay.selftest.rows import Records
from relay.spec.setting import Shape
from relay.workflow import selftest_plan
from snakemake_calls import snakemake

FOLDER = (ROOT / selftest_plan.CONFIG).parent
GLOO = Shape(backend="gloo")


# What it tests


def test_every_strategy_is_in_it() -> None:
    asked = {each["strategy"] for file in FOLDER.glob("*.yaml") for each in read_config(file)["comparisons"]}
    assert asked == {path.stem for path in (ROOT / "scripts/relay/strategies").glob("[a-z]*.py")} - {"base"}


def test_gates_of_further_configs_come_with_what_they_need_and_change_nothing_of_the_plan() -> None:
    fsdp = {"strategy": "fsdp", "devices_per_node": 2}
    own, other = planned(CPU, DDP, {"strategy": "single_gpu"}), planned(DDP, fsdp, {"strategy": "zero1"}, cpus=8)
    joined = selftest_plan.with_gates(own, other)
    assert joined.runs == own.runs
    assert [*joined.gates] == [*own.gates, *(name for name in other.gates if name not in own.gates)]
    for gate in joined.gates:
        reference = joined.reference_of[gate]
        assert {joined.preflight_of[name] for name in (gate, reference)} <= joined.preflights.keys()
        assert joined.references[reference] == (own.references | other.references)[reference]
    for name in ("references", "preflights", "preflight_of"):
        mine = getattr(own, name)
        assert [*getattr(joined, name).items()][: len(mine)] == [*mine.items()]
    skipped = [each.setting.strategy.name for each in joined.skipped]
    assert skipped[:2] == ["single_gpu", "zero1"]
    assert [*joined.strategies] == ["cpu", "ddp", "single_gpu", "fsdp", "zero1"]


# What is right


def test_a_fault_has_to_be_named_and_tried_again_only_where_that_helps() -> None:
    killed = "its processes were killed (status 1)"
    for name, ended, right in (
        ("own_error", Ending(FAULT, "own_error failed: ValueError: planted by the self-test"), True),
        ("own_error", Ending(INTERRUPTED, f"own_error: {killed}"), False),
        ("own_error", Ending(FAULT, "own_error failed: RuntimeError: something else"), False),
        ("killed_peer", Ending(INTERRUPTED, f"killed_peer: {killed}"), True),
        ("killed_peer", Ending(FAULT, "killed_peer failed: its processes were killed"), False),
        ("duplicate_gpu", Ending(INTERRUPTED, f"duplicate_gpu: {killed}"), False),
        ("hang", None, False),
    ):
        assert judged(FAULTS[name], ended)[0] == right, (name, ended)


def test_a_killed_run_has_to_have_the_uncut_ones_result() -> None:
    """Bit for bit on CPUs; on GPUs it has to follow the uncut run for some steps: later their rounding parts them."""
    uncut = {"losses": {"steps": [1], "values": [0.5]}, "test_loss": 0.25, "test_accuracy": 0.9}
    assert compared(uncut, dict(uncut), "killed", "cpu", 0.0)[0]
    ok, told = compared(uncut, uncut | {"test_loss": 0.25 + 2**-54}, "killed", "cpu", 0.0)
    assert not ok
    assert "test_loss; test loss 0.25, then 0.25000000000000006" in told
    assert compared(uncut, uncut | {"test_loss": 0.31}, "killed", "cuda", 3e-7)[0]
    assert not compared(uncut, uncut | {"test_loss": 0.251}, "killed", "cuda", 2e-2)[0]


# The page


def test_a_part_is_as_its_record_says(tmp_path: Path) -> None:
    for ok, outcome in ((True, "worked"), (False, "failed")):
        write_json(tmp_path / f"selftest/{RESUME}/run-1.json", {"ok": ok, "told": "as it was", "seconds": 1.0})
        assert Records(tmp_path, {"run-1": "a run"}).of_own_part(RESUME, "run-1", None).outcome == outcome


# All of it


SMALL = {"epochs": 12, "segment": {"epochs": 6}, "checkpoint_every_epochs": 1}
SMALL |= {"device": "cpu", "gate": {"steps": 20}, "probe": {"most": 64}}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_failing_part_ends_no_other_and_the_page_tells_all(tmp_path: Path) -> None:
    """The only whole run of the self-test."""
    comparisons = [{"strategy": name, "devices_per_node": 2} for name in ("ddp", "wrong_second_rank_crashes")]
    config = SMALL | {"strategy_folders": [str(ROOT / "tests/strategies")], "comparisons": comparisons}
    printed = well(snakemake(tmp_path, config, "selftest", "-n"))
    first = next(line for line in printed.splitlines() if not line.startswith(("Using profile", "Config file")))
    assert first == "self-test on this machine's CPUs, without a GPU"
    assert snakemake(tmp_path, config, "selftest")[0] == 1
    wrong, worked = (tmp_path / "results/selftest.md").read_text().split("## What worked")
    told = [line for line in wrong.splitlines() if line.startswith("| ") and "wrong_second" not in line]
    assert len(told) == 2, told  # the head of the table
    assert "wrong_second_rank_crashes" in wrong
    for part in (*rows.PARTS[3:7], rows.PROBE, rows.PREFLIGHT):
        assert f"### {part}\n" in worked
    for fault in FAULTS.values():
        assert (fault.means in worked) == fault.met_by(GLOO), fault
    assert "it went on, to the same result, bit for bit" in worked
