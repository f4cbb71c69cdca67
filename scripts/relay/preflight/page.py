"""One page of plain text: is my PyTorch on this cluster all right?"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.base.files import read_json_or
from relay.preflight.findings import SEVERITIES, Finding, recorded
from relay.preflight.job import COLLECTED, PROBLEMS
from relay.spec.labels import counted

COLUMNS = ("shape", "stack", "nodes", "torch", "driver", "transport", "GB/s", "node's disk", "verdict")
WIDTH = 120
PASSED, FAILED, NOT_RUN = "all right", "FAILED", "not run"


def show(folder: Path, only: Sequence[str] | None = None) -> int:
    """Print the page; 0 where all preflights passed, 1 where one did not. Raises UserError where there is none."""
    print(page(folder, only))
    return 0 if all(state(place) == PASSED for place in _places(folder, only)) else 1


def page(folder: Path, only: Sequence[str] | None = None) -> str:
    """A line for each preflight below the folder, what was found, each with its remedy, and a verdict.

    `only` names the preflights that count, such as those of the shapes that are planned now; None: all that ran.
    """
    places = _places(folder, only)
    if all(state(place) == NOT_RUN for place in places):
        start = "start one with `snakemake --profile profiles/slurm preflight`"
        raise UserError(f"{', '.join(map(str, places)) or folder}: no preflight has run; {start}")
    findings = _findings(places)
    legend = "nodes: nodes × GPUs (c: CPU processes) of each. GB/s: bus bandwidth of the all-reduce over all ranks."
    lines = ["Is my PyTorch on this cluster all right?", "", *_table([COLUMNS, *map(_row, places)]), "", legend]
    for finding in sorted(findings, key=lambda each: each.rank):
        names = findings[finding]
        text = f"{finding.severity}: {finding.check}: {finding.found}"
        text += "" if len(names) == len(places) else f" [{', '.join(names)}]"
        lines += ["", *textwrap.wrap(text, WIDTH, subsequent_indent="      ")]
        if remedy := finding.remedy:
            lines += textwrap.wrap(f"→ {remedy}", WIDTH, initial_indent="      ", subsequent_indent="        ")
    return "\n".join([*lines, "", _verdict(places, findings)])


def _places(folder: Path, only: Sequence[str] | None) -> list[Path]:
    if only is not None:
        return [folder / name for name in dict.fromkeys(only)]
    return sorted({path.parent for name in ("facts.json", PROBLEMS) for path in folder.glob(f"*/{name}")})


def state(place: Path) -> str:
    """How a preflight ended, by the files in its folder."""
    if (place / PROBLEMS).exists():
        return FAILED
    return PASSED if (place / "facts.json").exists() else NOT_RUN


def _read(place: Path) -> dict[str, Any] | None:
    """A preflight's facts, of a failed one too."""
    return read_json_or(place / "facts.json", {}) or read_json_or(place / COLLECTED, {}) or None


def _row(place: Path) -> tuple[str, ...]:
    facts, verdict = _read(place), state(place)
    if not facts or verdict == NOT_RUN:
        return (place.name, *["?"] * (len(COLUMNS) - 2), verdict)
    run, ranks = facts["run"], facts["ranks"]
    first: Mapping[str, Any] = ranks[0] if ranks else {}
    torch = first.get("torch")
    built = f" cu{torch['cuda']}" if torch and torch["cuda"] else ""
    count, kind = (run["devices_per_node"], "") if run["device"] == "cuda" else (run["processes_per_node"], "c")
    disk = first.get("node_disk")
    return (
        place.name,
        run["stack"],
        f"{run['nodes']}×{count}{kind} {','.join(dict.fromkeys(rank['node'] for rank in ranks))}",
        f"{torch['version'].split('+')[0]}{built}" if torch else "?",
        (first.get("driver") or {}).get("version") or "–",
        _transport(run, ranks),
        _bandwidth(facts["allreduce"]),
        "?" if not disk else disk["error"] or f"{disk['path']} {disk['free_bytes'] / 1e9:.0f} GB",
        verdict,
    )


def _transport(run: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]) -> str:
    logs = [rank["nccl"] for rank in ranks if rank.get("nccl")]
    if not logs:
        return str(run["backend"]) if run["world_size"] > 1 else "–"
    ways = sorted(set().union(*(log["via"] for log in logs))) or [logs[0]["network"] or "?"]
    return f"nccl {logs[0]['version'] or ''} {','.join(ways)}"


def _bandwidth(rows: Iterable[Mapping[str, Any]]) -> str:
    speeds = [row["bus_gb_per_second"] for row in rows if row["span"] == "all"]
    return f"{max(speeds):.2g}" if speeds else "–"


def _findings(places: Sequence[Path]) -> dict[Finding, list[str]]:
    """Each finding, with the preflights that had it."""
    named: dict[Finding, list[str]] = {}
    for place in (place for place in places if state(place) != NOT_RUN):
        facts = _read(place)
        if facts and "findings" in facts:
            of_place = recorded(facts)
        else:  # its job could not even judge
            lines = read_json_or(place / PROBLEMS, None) or []
            of_place = [Finding("preflight", "stop", line, "see its log") for line in lines]
        for finding in of_place:
            named.setdefault(finding, []).append(place.name)
    return named


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _verdict(places: Sequence[Path], findings: Iterable[Finding]) -> str:
    failed, open_ = ([place for place in places if state(place) == each] for each in (FAILED, NOT_RUN))
    counts = {severity: sum(finding.severity == severity for finding in findings) for severity in SEVERITIES}
    problems = counted(counts["stop"], "problem")
    also = f"{counted(counts['warn'], 'warning')}, {counted(counts['note'], 'note')}"
    if failed:
        return f"Verdict: NO: {len(failed)} of {len(places)} preflights failed ({problems}; {also})."
    if open_:
        return f"Verdict: not known: {len(open_)} of {len(places)} preflights did not run to their end ({also})."
    return f"Verdict: yes: nothing stops training in any of {len(places)} preflights ({also})."
