"""The rules: each names its own parts, and Snakemake's linter finds nothing."""

import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake.resources import Resources

from living import well
from plans import CPU, ROOT, planned
from relay.driver.terminal import SEGMENT
from relay.workflow.call import Call
from relay.workflow.job_rule import JobRule
from relay.workflow.jobs import Jobs
from snakemake_calls import called


def test_every_rule_of_a_job_is_made_of_its_own_parts() -> None:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "workflow/rules").glob("*.smk")))
    rules = {rule.partition(" ")[0]: rule for rule in re.split(r"(?m)^use rule look as ", text)[1:]}
    jobs = Jobs(Call(SimpleNamespace(is_main_process=False), planned(CPU)))
    kinds = {name for name, part in vars(jobs).items() if isinstance(part, JobRule)}
    assert kinds == {*rules, "look"}
    for name, rule in rules.items():
        assert ("first=jobs.first_step" in rule) == (name == SEGMENT)  # `driver.retries` reads it
        named = re.findall(r"jobs\.(\w+)\.(conda|resources|params)", rule.partition("\nrule ")[0])
        assert named == [(name, part) for part in ("conda", "resources", "params")]


@pytest.mark.slow
def test_the_linter_finds_nothing(tmp_path: Path) -> None:
    words = ["--lint", "--snakefile", ROOT / "Snakefile", "--profile", ROOT / "profiles/local"]
    well(called([*words, "--configfile", ROOT / "config/demo.yaml"], tmp_path))


@pytest.mark.parametrize("given", [None, [], ["tmpdir=/scratch"]])
def test_temporary_files_lie_where_the_user_says(given: list[str] | None) -> None:
    chosen = None if given is None else Resources.parse(given, allow_expressions=True, defaults="bare")
    workflow: Any = SimpleNamespace(resource_settings=SimpleNamespace(default_resources=chosen))
    plan: Any = SimpleNamespace()
    assert Call(workflow, plan).temporary == ({} if given else {"tmpdir": tempfile.gettempdir()})
