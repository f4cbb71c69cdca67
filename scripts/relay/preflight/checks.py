"""Every known trap as a check: pure functions from the facts of a job to findings, each with its remedy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from relay.preflight.findings import REGISTER, Facts, Finding, Registered, warn

# Importing the modules with checks, `checks_*.py` beside this one, fills the register.
for _path in sorted(Path(__file__).parent.glob("checks_*.py")):
    import_module(f"{__package__}.{_path.stem}")


def check_all(collected: Mapping[str, Any]) -> list[Finding]:
    """What every check that applies finds, the worst first; for partial facts only what these can tell."""
    facts = Facts(collected)
    if not facts.ranks:
        return []
    findings = [finding for registered in REGISTER if (finding := _judged(registered, facts))]
    return sorted(findings, key=lambda finding: (finding.ok, ("stop", "warn", "note").index(finding.severity)))


def prevent_joining(collected: Mapping[str, Any]) -> list[Finding]:
    """What would keep a rank with these facts waiting for the others in vain."""
    facts = Facts(collected)
    findings = [_judged(registered, facts) for registered in REGISTER if registered.prevents_joining]
    return [finding for finding in findings if finding and finding.severity == "stop"]


def _judged(registered: Registered, facts: Facts) -> Finding | None:
    try:
        finding = registered.function(facts)
    except Exception as error:  # facts that nobody has met yet must not keep anybody from training
        finding = warn(f"the check failed itself: {type(error).__name__}: {error}", "please report it with the facts")
    return finding and replace(finding, check=registered.name)
