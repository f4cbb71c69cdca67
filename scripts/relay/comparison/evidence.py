"""How the runs were measured, from their own records: what a reader needs to check a figure, or to make it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from relay.base.files import read_json_or
from relay.comparison.inputs import Inputs, RunResult
from relay.comparison.setting_result import by_setting
from relay.comparison.table import versions_text
from relay.run_folder.snapshot import COMMIT

DIGITS = 12  # of a digest, shown


def evidence(inputs: Inputs, results: Path) -> dict[str, Any]:
    """What the records below `results` say of the measurement, by the names that the page's template uses.

    Counts are all different ones, the smallest first. The config is YAML, or ''. What no record has is left out.
    """
    summaries = [each.summary for each in inputs.runs if each.summary]
    looks = {each.preflight: _look(results, each.preflight) for each in inputs.runs if each.preflight}
    return {
        "runs": len(inputs.runs),
        "finished": len(summaries),
        "repeats": sorted({len(group) for group in by_setting(inputs.runs).values()}),
        "segments": sorted({each.segments for each in inputs.runs}),
        "attempts": sum(summary.attempts for summary in summaries),
        "warmup_steps": sorted({each.run.length.warmup_steps for each in inputs.runs}),
        "margin": inputs.margin,
        "versions": sorted({versions_text(summary.versions) for summary in summaries}),
        "variables": sorted({each.run.place.variables for each in inputs.runs} - {""}),
        "devices": sorted({summary.device_name for summary in summaries}),
        "drivers": sorted({driver for ranks in looks.values() for driver in _drivers(ranks)}),
        "transports": list(_transports(inputs.runs, looks)),
        "hosts": sorted({host for summary in summaries for host in summary.hosts}),
        "codes": [_code(code, results) for code in sorted({summary.code for summary in summaries})],
        "dates": sorted(summary.started_at for summary in summaries if summary.started_at),
        "config": yaml.safe_dump(dict(inputs.config), sort_keys=False, width=100) if inputs.config else "",
        "shrunk": bool(inputs.config.get("shrink")),
    }


def _look(results: Path, preflight: str) -> list[Mapping[str, Any]]:
    """What a preflight found on its ranks; nothing where there is no such file."""
    facts = read_json_or(results / "preflight" / preflight / "facts.json", {})
    return list(facts.get("ranks", [])) if isinstance(facts, dict) else []


def _drivers(ranks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The GPUs' drivers."""
    for rank in ranks:
        if version := (rank.get("driver") or {}).get("version"):
            yield str(version)


def _transports(
    runs: Sequence[RunResult], looks: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """What several processes communicated by: backend, networks and ways that NCCL chose in the preflight, strategies.

    Where NCCL's log is silent, there are no networks and ways.
    """
    strategies_by_transport: dict[tuple[str, tuple[str, ...], tuple[str, ...]], set[str]] = {}
    for each in runs:
        shape = each.run.shape
        if shape.world_size > 1:
            of_nccl = looks[each.preflight] if shape.backend == "nccl" and each.preflight else []
            said = [rank["nccl"] for rank in of_nccl if rank.get("nccl")]
            networks = sorted({str(nccl["network"]) for nccl in said if nccl.get("network")})
            ways = sorted({str(way) for nccl in said for way in nccl.get("via") or {}})
            transport = str(shape.backend), tuple(networks), tuple(ways)
            strategies_by_transport.setdefault(transport, set()).add(each.run.strategy.name)
    for (backend, on_networks, by_ways), strategies in sorted(strategies_by_transport.items()):
        yield backend, [*on_networks], [*by_ways], sorted(strategies)


def _code(code: str, results: Path) -> Mapping[str, Any]:
    """A snapshot of the code, with the commit of the checkout that it was taken from, where that is known."""
    origin = read_json_or(results / "code" / code / COMMIT, {})
    commit = str(origin.get("commit") or "")[:DIGITS] if isinstance(origin, dict) else ""
    return {"digest": code[:DIGITS], "commit": commit, "changed": bool(commit and origin.get("changed"))}
