"""The page: one HTML file that contains everything it shows, so that it can be read without a network."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from relay.base.files import read_json_or, write_text
from relay.base.grouped import grouped
from relay.base.printable import printable
from relay.comparison import words
from relay.comparison.answer import Answer
from relay.comparison.answer_files import recommendation
from relay.comparison.candidates import rules_of
from relay.comparison.drawing import MOST_SETTINGS, repeats_drawn, standalone
from relay.comparison.inputs import Inputs, RunResult
from relay.comparison.no_result import log_of
from relay.comparison.objections import proven
from relay.comparison.pictures import pictures
from relay.comparison.scaling import scaling_rows, shown
from relay.comparison.setting_result import SettingResult, by_setting, quality
from relay.comparison.table import versions_text
from relay.run_folder.snapshot import COMMIT
from relay.slurm.batch_script import BatchScript
from relay.spec.run import OwnBatch, setting_fields

Section = dict[str, Any]
DIGITS = 12  # of a digest, shown


def sections(
    inputs: Inputs, settings: Sequence[SettingResult], answers: Sequence[Answer], results: Path
) -> list[Section]:
    """What the page shows of each answer. `settings` are all of the comparison."""
    accuracy, contents = inputs.config.get("target_accuracy"), []
    of_answer = grouped(settings, lambda each: each.row["trained"])
    for place, answer in enumerate(answers):
        results_of = of_answer[answer.trained]
        rows, runs = [each.row for each in results_of], [each for each in results_of if each.repeats]
        recommended, scaled = recommendation(answer, results), scaling_rows(rows)
        section = {
            "answer": answer,
            "unit": answer.unit,
            "quality": quality(rows),
            "block": pasted(answer, recommended.script) if recommended else "",
            "own_script": "\n".join(recommended.own_script) if recommended else "",
            "results": results_of,
            "runs": runs,
            "warnings": list(grouped(words.warnings(runs), lambda each: (each.kind, each.advice)).values()),
            "scaling": [*map(shown, scaled)],
            "gates": _gates(runs),
            "pictures": pictures(runs, scaled, answer, place, accuracy),
        }
        contents.append(section)
    return contents


def render(inputs: Inputs, contents: Sequence[Section], results: Path) -> str:
    """The page's HTML."""
    template = words.environment().get_template("comparison.html.j2")
    html = template.render(
        sections=contents,
        evidence=evidence(inputs, results),
        least_efficiency=rules_of(inputs.margin, inputs.rules).least_efficiency,
        loader=next(each.about.means for each in setting_fields() if each.name == "loader"),
        repeats_drawn=repeats_drawn,
        most_drawn=MOST_SETTINGS,
        verdict_of=partial(verdict_of, results=results),
        files_of=partial(files_of, results=results),
        of_failed=partial(of_failed, results=results),
    )
    return printable(html)  # a browser obeys what turns the direction of a text


def write_pictures(folder: Path, contents: Sequence[Section]) -> None:
    """Write every picture of the page, by a name such as 'lenet-digits-speed.svg', in place of older ones.

    Raises OSError.
    """
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.svg"):
        old.unlink()
    for section in contents:
        for name, svg in section["pictures"].items():
            write_text(folder / f"{section['answer'].file_name}-{name}.svg", standalone(svg))


def pasted(answer: Answer, script: BatchScript) -> str:
    """The lines for a script of one's own: without its name, and without the place of its output.

    They say for which options of the task they are, where there are several.
    """
    own = ("#SBATCH --job-name=", "#SBATCH --output=")
    asks = [line for line in script.block.splitlines() if not line.startswith(own)]
    of = [f"# for {answer.trained}"] if answer.one_of_several else []
    return "\n".join([*of, *asks, *script.to_fill_in])


def _gates(results: Sequence[SettingResult]) -> list[dict[str, Any]]:
    """Every verdict once, with the names of the settings that share it. What strikes a setting out comes first."""
    # Else the verdict would be that of something else.
    judged = [each for each in results if each.repeats[0].verdict and proven(each.repeats)]
    # The verdict has parts of its own for each batch size.
    alike = grouped(judged, lambda each: (each.row["gate"], OwnBatch.of(each.run)))
    gates = [
        {
            "names": [each.name for each in members],
            "verdict": members[0].repeats[0].verdict,
            "struck_out": any(each.row["equivalent"] is False for each in members),
        }
        for members in alike.values()
    ]
    return sorted(gates, key=lambda gate: not gate["struck_out"])


def verdict_of(setting: SettingResult, results: Path) -> str:
    """The link to the verdict of a setting's gate; '' where there is none."""
    path = results / "equivalence" / "gates" / setting.row["gate"] / "verdict.json"
    return path.relative_to(results).as_posix() if path.is_file() else ""


def files_of(repeat: RunResult, results: Path) -> list[tuple[str, str]]:
    """The files of a run that are there: what each is, and its link."""
    folder = results / "runs" / repeat.run.id
    logs = (results / "logs" / "segment" / repeat.run.id).glob("*.log")
    log = max(logs, key=lambda path: path.stat().st_mtime, default=None) or log_of(repeat.run.id, results)
    files = {"specification": folder / "run.json", "record": folder / "summary.json", "log": log}
    return [
        (what, path.relative_to(results).as_posix())
        for what, path in files.items()
        if path.is_file() and path.is_relative_to(results)
    ]


def of_failed(setting: SettingResult, results: Path) -> list[tuple[str, str]]:
    """The verdict of the gate that strikes a setting out, and the logs of the repeats that failed."""
    verdict = verdict_of(setting, results) if setting.row["equivalent"] is False else ""
    logs = [
        (f"log of repeat {repeat.run.repeat + 1}", href)
        for repeat in setting.repeats
        if not repeat.summary
        for what, href in files_of(repeat, results)
        if what == "log"
    ]
    return [*([("the gate's verdict", verdict)] if verdict else []), *logs]


# The evidence: how the runs were measured, from their own records


def evidence(inputs: Inputs, results: Path) -> dict[str, Any]:
    """What the records below `results` say of the measurement, by the names that the page's template uses.

    Counts are all different ones, the smallest first. The config is YAML, or ''. What no record has is left out.
    """
    summaries = [each.summary for each in inputs.runs if each.summary]
    preflights = {each.planned.preflight for each in inputs.runs if each.planned.preflight}
    facts = {each: read_json_or(results / "preflight" / each / "facts.json", {}) for each in preflights}
    looks = {each: its.get("ranks", []) for each, its in facts.items()}  # what a preflight found on its ranks
    drivers = [(rank.get("driver") or {}).get("version") for ranks in looks.values() for rank in ranks]
    return {
        "runs": len(inputs.runs),
        "finished": len(summaries),
        "repeats": sorted({len(group) for group in by_setting(inputs.runs).values()}),
        "segments": sorted({len(each.planned.segments) for each in inputs.runs}),
        "attempts": sum(summary.attempts for summary in summaries),
        "warmup_steps": sorted({each.run.length.warmup_steps for each in inputs.runs}),
        "margin": inputs.margin,
        "versions": sorted({versions_text(summary.versions) for summary in summaries}),
        "variables": sorted({each.run.place.variables for each in inputs.runs} - {""}),
        "devices": sorted({summary.device_name for summary in summaries}),
        "drivers": sorted({str(version) for version in drivers if version}),
        "transports": list(_transports(inputs.runs, looks)),
        "hosts": sorted({host for summary in summaries for host in summary.hosts}),
        "codes": [_code(code, results) for code in sorted({summary.code for summary in summaries})],
        "dates": sorted(summary.started_at for summary in summaries if summary.started_at),
        "config": yaml.safe_dump(dict(inputs.config), sort_keys=False, width=100) if inputs.config else "",
        "shrunk": bool(inputs.config.get("shrink")),
    }


def _transports(
    runs: Sequence[RunResult], looks: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, list[str], list[str], list[str]]]:
    """What several processes communicated by: backend, networks and ways that NCCL chose in the preflight, strategies.

    Where NCCL's log is silent, there are no networks and ways.
    """

    def transport(each: RunResult) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        preflight = each.planned.preflight if each.run.shape.backend == "nccl" else None
        of_nccl = looks[preflight] if preflight else []
        said = [rank["nccl"] for rank in of_nccl if rank.get("nccl")]
        networks = {str(nccl["network"]) for nccl in said if nccl.get("network")}
        ways = {str(way) for nccl in said for way in nccl.get("via") or {}}
        return str(each.run.shape.backend), tuple(sorted(networks)), tuple(sorted(ways))

    several = [each for each in runs if each.run.shape.world_size > 1]
    for (backend, networks, ways), its in sorted(grouped(several, transport).items()):
        yield backend, [*networks], [*ways], sorted({each.run.strategy.name for each in its})


def _code(code: str, results: Path) -> Mapping[str, Any]:
    """A snapshot of the code, with the commit of the checkout that it was taken from, where that is known."""
    origin = read_json_or(results / "code" / code / COMMIT, {})
    commit = str(origin.get("commit") or "")[:DIGITS]
    return {"digest": code[:DIGITS], "commit": commit, "changed": bool(commit and origin.get("changed"))}
