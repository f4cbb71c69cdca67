"""What the jobs of a call are handed: its plan as JSON, which is the same plan when it is read."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plans import CPU, DDP, ROOT, plan, planned
from refusals import refusal
from relay.base.errors import UserError
from relay.config.config import load
from relay.planning import handed
from relay.planning.plan import Plan
from relay.slurm.requested import Requests, Sized
from relay.spec.run import TaskLook
from relay.spec.setting import Shape
from relay.spec.site import load_site

SCRIPT = {"command": "python train.py --batch {global_batch_size} --rate {rate}", "name": "mine"}


def on_a_cluster(_: Path) -> Plan:
    comparisons = [DDP | {"segment": {"minutes": 5}}, {"strategy": "single_gpu", "precision": ["fp32", "bf16"]}]
    made = plan(load({"comparisons": comparisons, "runtime_minutes": 30}), root=ROOT, site=load_site("fir", ROOT))
    sized = Sized(memory_mb=900, minutes=7, memory_why="measured", time_why="measured")
    return replace(made, requests=Requests({made.settings[0].id: sized}, {"gate x": 3600}))


def of_a_script(folder: Path) -> Plan:
    (folder / "train.py").write_text("print('step 1')\n")
    reading = {"step": r"step (\d+)", "loss": r"loss ([\d.]+)"}
    return planned(SCRIPT | {"global_batch_size": [8, 16], "options": {"rate": [0.1]}, "read": reading})


def with_a_look(_: Path) -> Plan:
    look = TaskLook(
        id="mine-1", shape=Shape(), of_stack="torch", task="mine", file="mine.py", options={"depth": 2},
        dataset_root=None, dataset_mirror="https://x.org",
    )  # fmt: skip
    return Plan(load({"comparisons": [CPU]}), ROOT, None, ["cpu"], looks={"mine-1": look}, warnings=["not here"])


def content(made: Plan) -> dict[str, Any]:
    """A plan's fields but for the site, which knows its file; a sequence is the same of whatever kind."""
    values = {each.name: getattr(made, each.name) for each in fields(made) if each.name != "site"}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


SEVERAL = [CPU | {"cpus_per_task": [1, 2]}, DDP, {"strategy": "single_gpu"}, {"strategy": "pipeline"}]
PLANS: dict[str, Callable[[Path], Plan]] = {
    "here": lambda _: planned(*SEVERAL, repeats=3, shrink=True),
    "cluster": on_a_cluster,
    "script": of_a_script,
    "look": with_a_look,
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_the_same_when_a_job_reads_it(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = PLANS[kind](tmp_path)
    monkeypatch.setattr(handed, "WORKFLOW", ())
    for selftest in (False, True):
        workflow = SimpleNamespace(config_settings=SimpleNamespace())
        handed.hand_over(made, selftest=selftest, workflow=workflow)
        told, found = handed.handed()
        assert told is selftest
        assert content(found) == content(made)
        assert repr(content(handed.as_read(made))) == repr(content(found))  # to a number's kind
    assert found.site == made.site
    assert (found.site and found.site.file) == (made.site and made.site.file)
    assert [found.job(run) for run in found.runs] == [made.job(run) for run in made.runs]


def test_a_plan_of_another_version_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    handed.FOLDER.mkdir(parents=True)
    (handed.FOLDER / handed.PLAN).write_text('{"plan": {"root": 3}}')
    with pytest.raises(UserError, match=r"^results/code/call/plan.json: plan.config: damaged, or of another version; "):
        handed.handed()
    (handed.FOLDER / handed.PLAN).unlink()
    assert "cannot be read: No such file or directory; give the same call again" in refusal(handed.handed)
