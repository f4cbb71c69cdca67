"""The scripts of the centres' pages as configs, planned as docs/translating-options.md says of each.

Its tables have a line for each script: what its job asks for, what is planned on the centre's ready profile, and what
differs. The plan is compared word for word.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from plans import ROOT, plan
from relay.config.config import load
from relay.planning.plan import Plan
from relay.spec.job import Job
from relay.spec.run import Run
from relay.spec.site import load_site

PAGE = (ROOT / "docs" / "translating-options.md").read_text()


def rows() -> Iterator[tuple[str, str, str]]:
    """Of each line of a centre's table: the profile that its section names, its config, and what is planned."""
    for section in re.split(r"(?m)^## ", PAGE):
        profiles = re.findall(r"`--profile profiles/([a-z0-9-]+)`", section)
        pattern = r"(?m)^\| (.+) \| \[`([a-z0-9_-]+)`\]\(\.\./config/pages/\2\.yaml\) \| (.+) \| (.+) \| (.*) \|$"
        for _script, config, _asked, planned, _differs in re.findall(pattern, section):
            yield profiles[0], config, planned


def plan_of(profile: str, config: str) -> Plan:
    """The config on the site of the profile."""
    resources = yaml.safe_load((ROOT / "profiles" / profile / "config.yaml").read_text())["default-resources"]
    (site,) = (each.removeprefix("site=").strip("'") for each in resources if "site=" in each)
    asked = load(yaml.safe_load((ROOT / f"config/pages/{config}.yaml").read_text()) | {"repeats": 1})
    return plan(asked, site=load_site(site, ROOT), root=ROOT, results=Path("none"))


def of_run(run: Run, job: Job) -> tuple[object, ...]:
    """What a run's job asks for on each node, and its training, in the order of the page."""
    asked = (job.nodes, job.gpus_per_node, job.tasks_per_node, job.cpus_per_task, job.memory_mb or "–", job.minutes)
    return (*asked, run.batch.global_batch_size, f"{run.length.epochs:g}")


def told(found: Plan) -> str:
    """All of a plan's runs in one cell: the different values of each quantity."""
    of_setting = {run.setting_id: run for run in found.runs}
    pairs = [(run, found.job(run)) for run in (of_setting[planned.id] for planned in found.settings)]
    columns = zip(*(of_run(run, job) for run, job in pairs if job), strict=True)
    nodes, gpus, tasks, cpus, memory, minutes, batch, epochs = (
        "/".join(dict.fromkeys(map(str, values))) for values in columns
    )

    def counted(text: str, what: str) -> str:
        return f"{text} {what}{'' if text == '1' else 's'}"

    asked = [counted(nodes, "node"), counted(gpus, "GPU"), counted(tasks, "task"), counted(cpus, "CPU")]
    asked += [f"{memory} MB", counted(minutes, "minute")]
    return f"{', '.join(asked)}; batch {batch}, {counted(epochs, 'epoch')}"


@pytest.mark.usefixtures("in_the_project")
@pytest.mark.parametrize(("profile", "config", "planned"), rows())
def test_each_script_is_planned_as_its_line_says(profile: str, config: str, planned: str) -> None:
    found = plan_of(profile, config)
    assert [(skipped.setting.strategy.name, skipped.reasons) for skipped in found.skipped] == []
    assert planned == told(found)
