"""What the spot checks have found of each run, and how the tables tell it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from relay.base.files import read_json

Status = Literal["passed", "failed", "not checked", "off"]
_ORDER: tuple[Status, ...] = ("passed", "failed", "not checked", "off")


@dataclass(frozen=True)
class SpotChecked:
    """One run's spot check: what was found, and why it failed or could not be made. `off`: none was asked for."""

    status: Status = "off"
    reason: str = ""
    spots: int = 0


def spot_checked(
    run: str, setting: str, results: Path, *, asked: bool, read: Callable[[Path], Any] = read_json
) -> SpotChecked:
    """What was found of a run. A verdict on an earlier start of the run, or one that cannot be read, is none.

    `read` gives a file's JSON: all repeats of a setting ask for the same one.
    """
    if not asked:
        return SpotChecked()
    try:
        verdict = read(results / "equivalence" / "spot_checks" / setting / "verdict.json") or {"runs": []}
        found = next((each for each in verdict["runs"] if each["run"] == run), None)
        if found is None or _other_start(found, run, results):
            return SpotChecked("not checked", "its spot check has not been made")
        return _read(found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return SpotChecked("not checked", f"results/equivalence/spot_checks/{setting}/verdict.json is damaged")


def _other_start(found: dict[str, Any], run: str, results: Path) -> bool:
    """Whether the run has been started anew since. Where its checkpoints were deleted, it was not."""
    chain = read_json(results / "checkpoints" / run / "chain.json")
    return chain is not None and chain["generation"] != found["generation"]


def _read(found: dict[str, Any]) -> SpotChecked:
    status, spots = found["status"], len(found["spots"])
    if status == "failed":
        return SpotChecked("failed", "; ".join(map(str, found["problems"])), spots)
    if status == "passed":
        return SpotChecked("passed", "", spots)
    return SpotChecked("not checked", "; ".join(map(str, found["unchecked"])) or "nothing could be compared", spots)


def summed_up(found: Iterable[SpotChecked]) -> str | None:
    """All repeats in a few words, such as '4 passed, 1 not checked'; None for runs that are not there."""
    statuses = [each.status for each in found]
    counts = [f"{statuses.count(status)} {status}" for status in _ORDER if status in statuses]
    return None if not statuses else "off" if set(statuses) == {"off"} else ", ".join(counts)
