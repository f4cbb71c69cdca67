"""Every known trap as a check: pure functions from the facts of a job to findings, each with its remedy."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from relay.preflight.findings import REGISTER, Facts, Finding, warn

# Importing the modules with checks, `checks_*.py` beside this one, fills the register.
for _path in sorted(Path(__file__).parent.glob("checks_*.py")):
    import_module(f"{__package__}.{_path.stem}")


def check_all(collected: Mapping[str, Any], *, joining: bool = False) -> list[Finding]:
    """The worst finding of each check that has one, the worst first; for partial facts only what these can tell.

    `joining`: only of the checks of what would keep a rank waiting for the others in vain.
    """
    facts, worst = Facts(collected), []
    for name, judge, prevents_joining in REGISTER if facts.ranks else ():
        if joining and not prevents_joining:
            continue
        findings: list[Finding] = []
        try:
            findings.extend(judge(facts))
        except Exception as error:  # facts that nobody has met yet must not keep anybody from training
            fault = f"the check failed itself: {type(error).__name__}: {error}"
            findings.append(warn(fault, "please report it with the facts"))
        if findings:
            worst.append(replace(min(findings, key=attrgetter("rank")), check=name))
    return sorted(worst, key=attrgetter("rank"))
