"""Every known trap as a check: pure functions from the facts of a job to findings, each with its remedy."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

from relay.preflight.findings import REGISTER, Facts, Finding, Registered, warn

# Importing the modules with checks, `checks_*.py` beside this one, fills the register.
for _path in sorted(Path(__file__).parent.glob("checks_*.py")):
    import_module(f"{__package__}.{_path.stem}")


def check_all(collected: Mapping[str, Any]) -> list[Finding]:
    """What the checks find, the worst first; for partial facts only what these can tell."""
    facts = Facts(collected)
    return _judged(REGISTER, facts) if facts.ranks else []


def prevent_joining(collected: Mapping[str, Any]) -> list[Finding]:
    """What would keep a rank with these facts waiting for the others in vain."""
    found = _judged((each for each in REGISTER if each.prevents_joining), Facts(collected))
    return [finding for finding in found if finding.severity == "stop"]


def _judged(checks: Iterable[Registered], facts: Facts) -> list[Finding]:
    """The worst finding of each check that has one, the worst first."""
    worst = []
    for registered in checks:
        found: list[Finding] = []
        try:
            found.extend(registered.function(facts))
        except Exception as error:  # facts that nobody has met yet must not keep anybody from training
            fault = f"the check failed itself: {type(error).__name__}: {error}"
            found.append(warn(fault, "please report it with the facts"))
        if found:
            worst.append(replace(min(found, key=attrgetter("rank")), check=registered.name))
    return sorted(worst, key=attrgetter("rank"))
