"""Gates that refuse a setting, told as soon as their verdict is there, and whether anything is left to use."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from relay.base.files import read_json_or
from relay.driver.claim import say
from relay.equivalence.verdict import CANNOT_RUN
from relay.run_folder.verdicts import of_batch
from relay.spec.labels import counted
from relay.spec.run import OwnBatch
from relay.spec.script import NOT_PROVEN

RESULTS = Path("results")
USELESS = ("struck out", "failed", "without a verdict of its gate")


@dataclass
class Refused:
    """Tells of each verdict once. Those that were there before this call are not told again.

    It looks at the files, because one job may write several verdicts.
    """

    results: Path = RESULTS
    seen: dict[Path, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = dict(self._verdicts())

    def tell(self) -> None:
        """Say a line for each verdict that is new, or made anew, and refuses its setting."""
        for path, at in self._verdicts():
            if self.seen.get(path) != at:
                self.seen[path] = at
                if line := refusal(path):
                    say(line)

    def _verdicts(self) -> Iterable[tuple[Path, int]]:
        for path in self.results.glob("equivalence/gates/*/verdict.json"):
            try:
                yield path, path.stat().st_mtime_ns
            except OSError:  # being made anew
                continue


def refusal(path: Path) -> str:
    """What the terminal shows of a verdict that refuses its setting, or cannot judge it; '' of one that passes it."""
    verdict = read_json_or(path, None)
    if verdict is None or verdict.get("equivalent", True):
        return ""
    gate, problems = path.parent.name, verdict.get("problems") or ["the equivalence gate failed"]
    if gate == NOT_PROVEN:  # known before anything is measured
        return ""
    if because := verdict.get("unprovable"):
        return f"gate {gate}: cannot tell, so its setting is measured, not proven: because {because}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    consequence = "" if CANNOT_RUN in problems[0] else "NOT equivalent, so "
    return f"gate {gate}: {consequence}the report strikes it out: {problems[0]}{more}; all of it: {path}"


def conclusion(
    runs: Collection[tuple[str, str, str]], results: Path = RESULTS, own: Mapping[str, OwnBatch] | None = None
) -> tuple[str, bool]:
    """The last line of a call for these runs, each with its gate and setting, and whether any can be recommended.

    `own`: the batch of each run. Of a gate's batches, that of another run is nothing against it.
    """
    counts = dict.fromkeys(("proven", "measured, not proven", *USELESS), 0)
    for run, gate, setting in runs:
        checked = read_json_or(results / "equivalence" / "spot_checks" / setting / "verdict.json", {})
        verdict = read_json_or(results / "equivalence" / "gates" / gate / "verdict.json", None)
        if verdict is not None and own and run in own:
            with suppress(KeyError, TypeError):  # damaged: the report says so
                verdict = of_batch(verdict, own[run])
        summary = read_json_or(results / "runs" / run / "summary.json", {})
        if summary.get("status") != "done":
            counts["failed"] += 1
        elif verdict is None:
            counts["without a verdict of its gate"] += 1
        elif any((each["run"], each["status"]) == (run, "failed") for each in checked.get("runs", ())):
            counts["struck out"] += 1
        elif verdict.get("unprovable"):
            counts["measured, not proven"] += 1
        else:
            counts["proven" if verdict.get("equivalent") else "struck out"] += 1
    summary_text = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    if any(count for outcome, count in counts.items() if outcome not in USELESS) or not runs:
        return summary_text and f"{counted(len(runs), 'run')}: {summary_text}", True
    return f"error: no run of this call can be used: {summary_text}; the report, or the lines above, say why", False
