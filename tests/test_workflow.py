"""The workflow as its user runs it: snakemake on a config, from the dataset to the report."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from living import well
from plans import strategy_folder
from relay.run_folder.results_folder import check_layout
from results_tree import rows
from snakemake_calls import ROOT, snakemake

WRONG = str(ROOT / "tests" / "strategies")
ONE = {"repeats": 1, "comparisons": [{"strategy": "cpu"}]}


def jobs(printed: str) -> dict[str, int]:
    """Snakemake's table of jobs."""
    lines = printed.split("Job stats:", 1)[1].splitlines()[3:]
    rows = [line.split() for line in lines[: lines.index("")]]
    return {name: int(count) for name, count in rows}


@pytest.mark.slow
def test_a_dry_run_shows_every_job_of_every_chain(tmp_path: Path) -> None:
    ddp = {"strategy": "ddp", "devices_per_node": 2, "segment": {"epochs": 5}}
    config = {"repeats": 2, "comparisons": [{"strategy": "cpu"}, ddp]}
    counted = jobs(well(snakemake(tmp_path, config, "--dry-run")))
    assert counted["segment"] == 2 * 1 + 2 * 4  # 20 epochs: whole, and 5 at a time
    assert (counted["gate"], counted["spot_check"], counted["reference"], counted["dataset"]) == (2, 2, 1, 1)
    printed = well(snakemake(tmp_path, config, "--until", "segment", "--dry-run"))
    assert jobs(printed)["reference"] == 1  # a run waits for it: without one, nothing can prove the run
    status, printed = snakemake(tmp_path, config, "status")
    assert (status, "runs: 4 to do" in printed) == (0, True), printed
    assert not (tmp_path / "results").exists()  # which may be read-only


def trained(folder: Path, config: dict) -> tuple[str, str]:
    """The config's only run as if it were trained, without records: its folder, and its last state file there."""
    _, printed = snakemake(folder, config, "--dry-run")
    found = re.search(r"logs/segment/(\S+)/step-(\d+)\.log", printed)
    assert found, printed
    run, state = f"results/runs/{found[1]}", f"step-{found[2]}.json"
    check_layout(folder / "results")
    (folder / run).mkdir(parents=True)
    for name in (state, "start.json"):
        (folder / run / name).write_text(json.dumps({"run": found[1], "generation": "first"}))
    return run, state


@pytest.mark.slow
def test_a_result_whose_records_are_deleted_is_kept_where_its_rule_is_forced(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, ONE)
    result = tmp_path / run / "summary.json"
    result.write_text(told := json.dumps({"run": result.parent.name, "status": "done"}))
    status, printed = snakemake(tmp_path, ONE, f"{run}/summary.json", "--forcerun", "summary")
    assert (status, "no records in results/checkpoints/" in printed) == (1, True), printed
    assert result.read_text() == told


@pytest.mark.slow
def test_what_depends_on_a_forced_rule_is_done_again(tmp_path: Path) -> None:
    run, state = trained(tmp_path, ONE)
    assert jobs(well(snakemake(tmp_path, ONE, f"{run}/{state}", "--forcerun", "start", "--dry-run")))["segment"] == 1


@pytest.mark.slow
def test_processes_judge_further_gates_of_their_own_group_alone(tmp_path: Path) -> None:
    """One process those of one process: a gate of `cpu` the other one, and not that of `ddp`."""
    of_two = {"strategy": "ddp", "devices_per_node": 2}
    config = {"repeats": 1, "comparisons": [{"strategy": "cpu", "precision": ["fp32", "bf16"]}, of_two]}
    _, printed = snakemake(tmp_path, config, "equivalence", "--dry-run", "--printshellcmds")
    beside = re.findall(r"--beside ?(.*?) ?>>", printed)
    assert sorted(gates.partition("-")[0] for gates in beside) == ["", "cpu", "cpu"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_plan_measures_the_speed_and_writes_it_down(tmp_path: Path) -> None:
    config = {"repeats": 1, "epochs": 2000, "segment": {"minutes": 2}, "comparisons": [{"strategy": "cpu"}]}
    well(snakemake(tmp_path, config, "plan"))
    (measured,) = (tmp_path / "results" / "speeds").glob("cpu-????????????.json")
    assert 0 < json.loads(measured.read_text())["seconds_per_step"] < 1
    printed = well(snakemake(tmp_path, config, "--dry-run"))
    assert jobs(printed)["segment"] > 1


Compared = tuple[Path, dict, str]  # the folder, its config, and what was printed


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """A whole comparison: two right strategies, a wrong one, one that fails, and one that is skipped."""
    folder = tmp_path_factory.mktemp("compared")
    strategies = strategy_folder(folder / "strategies", "fails", "processes='one'", FAILS)
    ddp = {"strategy": "ddp", "devices_per_node": 2, "repeats": 1, "segment": {"epochs": 2}}
    wrong = {"strategy": "wrong_sum", "devices_per_node": 2, "repeats": 1}
    others = [{"strategy": "fails", "repeats": 1}, {"strategy": "single_gpu"}]
    config = {"repeats": 2, "epochs": 4, "gate": {"steps": 20}, "device": "cpu"}
    config |= {"strategy_folders": [strategies, WRONG]}
    config |= {"comparisons": [{"strategy": "cpu"}, ddp, wrong, *others]}
    status, printed = snakemake(folder, config)
    assert status == 1, printed  # a run has failed for good
    return folder, config, printed


# In its second step, in training and in the gate.
FAILS = """
        self.steps = 0

    def train_step(self, batch):
        self.steps += 1
        if self.steps == 2:
            raise RuntimeError("the flux capacitor is empty")
        return super().train_step(batch)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
class TestComparison:
    def test_every_setting_has_its_row(self, compared: Compared) -> None:
        found = {row["strategy"]: row for row in rows(compared[0] / "results")}
        wanted = dict.fromkeys(("cpu", "ddp", "wrong_sum"), "done") | {"fails": "failed", "single_gpu": "skipped"}
        assert {name: row["status"] for name, row in found.items()} == wanted
        assert (found["cpu"]["equivalent"], found["ddp"]["equivalent"]) == ("true", "true")
        assert float(found["ddp"]["max_loss_difference"]) < 1e-9
        assert (found["ddp"]["segments"], found["ddp"]["world_size"]) == ("2", "2")
        assert float(found["cpu"]["samples_per_second_low"]) < float(found["cpu"]["samples_per_second"])
        for name in ("cpu", "ddp"):
            assert float(found[name]["test_accuracy"]) > 0.5  # of ten digits, after four epochs
            assert 0 < float(found[name]["goodput"]) < 1

    def test_what_trains_something_else_is_struck_out(self, compared: Compared) -> None:
        folder, _, printed = compared
        (row,) = [row for row in rows(folder / "results") if row["strategy"] == "wrong_sum"]
        assert row["equivalent"] == "false"
        assert row["standing"] == ""
        assert "<s>" in (folder / "results" / "comparison.html").read_text()
        assert "✗" in printed
        assert re.search(r"(?m)^gate wrong_sum-\S+: NOT equivalent, so the report strikes it out: ", printed)

    def test_a_failed_run_tells_its_error_and_the_others_are_compared(self, compared: Compared) -> None:
        folder, _, printed = compared
        (row,) = [row for row in rows(folder / "results") if row["strategy"] == "fails"]
        assert "RuntimeError: the flux capacitor is empty" in row["reason"]
        (block,) = re.findall(r"(?m)^FAILED: .*\n(?:  .*\n)*", printed)
        assert re.fullmatch(
            r"FAILED: Training fails \(1 proc, 1 thread, resident\) \[(\S+)\] from step 0 to (\d+)\n"
            r"  what      run \1 failed: RuntimeError: the flux capacitor is empty \(rank 0\)\n"
            r"  remedy    the log has the traceback\n"
            r"  log       results/logs/segment/\1/step-\2\.log\n",
            block,
        )
        for noise in ("Traceback", "Error in rule segment", "set -euo", "Trying to restart", "Removing output"):
            assert noise not in printed
        (chain,) = (folder / "results" / "checkpoints").glob("fails-*/chain.json")
        assert len(json.loads(chain.read_text())["attempts"]) == 1
        assert len(rows(folder / "results", "runs.csv")) >= 5

    def test_a_second_call_trains_only_what_failed(self, compared: Compared) -> None:
        folder, config, _ = compared
        assert jobs(well(snakemake(folder, config, "--dry-run")))["segment"] == 1

    @pytest.mark.long
    def test_what_is_missing_or_damaged_is_made_and_nothing_else(self, compared: Compared, tmp_path: Path) -> None:
        """Only this removes and damages single results, and runs the workflow to its end again."""
        folder, config, _ = compared
        rest = {**config, "comparisons": [c for c in config["comparisons"] if c["strategy"] != "fails"]}
        results = tmp_path / "results"
        shutil.copytree(folder / "results", results)
        assert "segment" not in jobs(well(snakemake(tmp_path, rest)))  # without the one that has failed, all is there
        plan = json.loads((results / "plan.json").read_text())
        runs = [results / "runs" / run["id"] for run in plan["runs"]]
        (runs[0] / "summary.json").unlink()
        (runs[1] / "summary.json").write_text("{")
        (results / "equivalence" / "gates" / plan["runs"][0]["gate"] / "verdict.json").unlink()
        last = results / "equivalence" / "spot_checks" / plan["runs"][-1]["setting"] / "verdict.json"
        last.unlink()
        for folder in (*results.glob("datasets/*"), *results.glob("environments")):  # what is finished needs none
            shutil.rmtree(folder)
        done = jobs(well(snakemake(tmp_path, rest)))
        assert (done["summary"], done["gate"], done["spot_check"], done["comparison"]) == (2, 1, 1, 1)
        assert not {"segment", "start", "reference"} & set(done)
        assert last.is_file()
        assert "Nothing to be done" in snakemake(tmp_path, rest)[1]

    @pytest.mark.long
    def test_a_run_is_trained_again_and_its_old_result_stays_till_then(
        self, compared: Compared, tmp_path: Path
    ) -> None:
        """Only this trains again what `relay train-again` has put aside."""
        folder, config, _ = compared
        rest = {**config, "comparisons": [c for c in config["comparisons"] if c["strategy"] == "cpu"]}
        shutil.copytree(folder / "results", tmp_path / "results")
        run = json.loads((tmp_path / "results" / "plan.json").read_text())["runs"]
        name = next(each["id"] for each in run if each["id"].startswith("cpu-"))
        again = [sys.executable, str(ROOT / "scripts" / "main.py"), "train-again", name]
        told = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert told.startswith(f"{name}: its result and checkpoints are moved to results/runs/replaced/{name} and ")
        aside = tmp_path / "results" / "runs" / "replaced" / name
        assert (aside / "summary.json").is_file()
        done = jobs(well(snakemake(tmp_path, rest)))
        assert (done["start"], done["segment"], done["summary"], done["spot_check"]) == (1, 1, 1, 1)
        assert not aside.exists()
        assert "Nothing to be done" in snakemake(tmp_path, rest)[1]

    def test_only_the_strategy_whose_results_are_gone_is_trained_again(self, compared: Compared) -> None:
        folder, config, _ = compared
        for run in (folder / "results" / "runs").glob("cpu-*"):
            for path in run.iterdir():
                path.unlink()
        printed = well(snakemake(folder, config, "cpu", "--dry-run"))
        assert jobs(printed)["segment"] == 2
        assert "Training ddp" not in printed
