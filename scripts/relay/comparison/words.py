"""The answer in words, which are in `workflow/report/words.j2` and `certainty.j2`; the warnings of `warnings.toml`.

Page, terminal, Markdown and script say the same, because all ask here.
"""

import math
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

from relay.base.entry import ROOT
from relay.base.printable import printable
from relay.comparison import columns, scaling
from relay.comparison.answer import DISTURBED, FAR_APART, NEIGHBOURS
from relay.comparison.candidates import Candidate
from relay.comparison.choice import speed_up
from relay.comparison.request import LEAST_MINUTES, MARGIN, START_SECONDS, request
from relay.comparison.setting_result import SettingResult, quality, relative_speed
from relay.comparison.statistics import LEAST_REPEATS, MOST_REPEATS, oddest
from relay.spec.labels import counted
from relay.spec.script import TASK
from relay.training.step_split import COLUMNS

MOST = 0.5  # of the difference: a part that takes less of it is not the reason
WORTH_TELLING = 0.1  # of a step's time
TEMPLATES = ROOT / "workflow" / "report"
EMPTY = "\0"  # an empty line of a command, which is a part of it
MACROS = ("words.j2", "certainty.j2")  # the templates whose macros tell an answer
# The macros that tell a line, and those that tell several paragraphs.
LINES = ("sentence", "certainty", "in_short", "why_not_the_fastest", "not_recommended", "jobs")
PARAGRAPHS = ("doubts", "reasons", "not_measured")


def told(what: str, *about: Any) -> str:
    """One of `LINES` about an answer, and about what else its macro takes; '' where there is nothing to tell."""
    return " ".join(paragraphs(what, *about))


def paragraphs(what: str, *about: Any) -> list[str]:
    """What a macro says, each paragraph in one line."""
    modules = [environment().get_template(template).module for template in MACROS]
    text = next(getattr(module, what) for module in modules if hasattr(module, what))(*about)
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def lines(template: str, **about: Any) -> list[str]:
    """The lines of a text that a template makes, without empty ones but for those that are marked as `EMPTY`."""
    text = environment().get_template(template).render(**about)
    return [line.replace(EMPTY, "") for line in text.split("\n") if line.strip()]


def markdown(template: str, **about: Any) -> str:
    """The Markdown that a template makes."""
    text = environment().get_template(template).render(**about)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def markdown_table(rows: Sequence[Mapping[str, str]]) -> str:
    """A table of rows that have their texts by heading."""
    shown = [{name: cell(text) for name, text in row.items()} for row in rows]
    return tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True)


def cell(text: str) -> str:
    """A text that cannot end its cell or its line, and is neither HTML nor a link."""
    in_a_line = " ".join(printable(str(text)).split()).replace("\\", "\\\\")
    return in_a_line.replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def coded(text: str) -> Markup:
    """A text with what stands in `backticks` as code of HTML."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


@cache
def environment() -> Environment:
    """The templates of the report, with all that they write figures with. What goes into HTML is escaped."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: ".html" in (name or ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,  # one comparison is told in the words of one version
    )
    named = (
        *columns.IN_WORDS, counted, size, speed_up, slower_by, beside_computing,
        columns.speed_in_unit, columns.unit_of, columns.result, columns.reason_title, columns.spread,
        columns.speed_and_spread, scaling.shown, markdown_table, cell, coded,
    )  # fmt: skip
    templates.filters |= {function.__name__: function for function in named} | {"quote": shlex.quote}
    templates.filters |= {what: partial(told, what) for what in LINES}
    templates.filters |= {what: partial(paragraphs, what) for what in PARAGRAPHS}
    templates.globals |= {"quality": quality, "neighbours": NEIGHBOURS, "most_repeats": MOST_REPEATS}
    templates.globals |= {"disturbed": DISTURBED, "far_apart": FAR_APART}
    templates.globals |= {"most_named": columns.MOST_NAMED, "missing": columns.MISSING, "of_scripts": TASK}
    return templates


# Figures that only words need


def size(candidate: Candidate) -> str:
    """What a setting computes on, such as '2 GPUs'."""
    return counted(candidate.size, "GPU" if candidate.on_gpus else "CPU core")


def slower_by(quick: Candidate, slow: Candidate) -> Mapping[str, Any] | None:
    """The part of a step that is most of what the slow setting takes longer; None without one, or if unobserved.

    Its `name`, its `share` of the slow one's steps, its `share_of_other`, and how many `whole_seconds` longer the slow
    one's piece of work takes, all parts together: by the repeats that were measured beside each other.
    """
    shares = [{part: each.row[name] for part, name in COLUMNS.items()} for each in (slow, quick)]
    if any(each["compute"] is None for each in shares):
        return None
    its, others = ({part: share or 0.0 for part, share in each.items()} for each in shares)  # not observed is little
    seconds = slow.seconds_per_piece.value
    others_seconds = seconds / relative_speed(quick.repeats, slow.repeats).value
    longer = {part: seconds * its[part] - others_seconds * others[part] for part in its}
    whole = sum(longer.values())
    part = max(longer, key=lambda each: longer[each])
    if whole <= 0 or longer[part] < MOST * whole:
        return None
    share_of_other = shares[1][part]
    return {"name": part, "slow": slow, "share": its[part], "share_of_other": share_of_other, "whole_seconds": whole}


def beside_computing(candidate: Candidate) -> Iterator[tuple[str, float]]:
    """What a setting's steps do most besides computing, and its share; nothing where that is little, or not known."""
    shares = {part: candidate.row[name] or 0.0 for part, name in COLUMNS.items() if part != "compute"}
    part = max(shares, key=lambda each: shares[each])
    if shares[part] >= WORTH_TELLING:
        yield part, shares[part]


# The warnings of `warnings.toml`, each with the figure that set it off, and what to do next


@dataclass(frozen=True)
class Warned:
    """A warning: its kind (a name of the closed list), the setting, the figure that set it off, and the advice."""

    kind: str
    setting: str
    figure: str
    advice: str


def warnings(settings: Sequence[SettingResult]) -> list[Warned]:
    """All warnings on the settings that have finished, in the order of the list."""
    done = [(each, _facts(each)) for each in settings if each.category == "done" and each.summaries]
    return [
        Warned(kind, each.name, *(" ".join(row[part](**facts).split()) for part in ("figure", "advice")))
        for kind, row in _rows().items()
        for each, facts in done
        if row["when"](**facts)
    ]


@cache
def _rows() -> dict[str, dict[str, Callable[..., Any]]]:
    """Each row of the list, with what computes its parts."""
    rows = tomllib.loads(Path(__file__).with_name("warnings.toml").read_text(encoding="utf-8"))
    templates = environment()
    return {
        kind: {
            "when": templates.compile_expression(" ".join(row["when"].split()), undefined_to_none=False),
            **{part: templates.from_string(row[part]).render for part in ("figure", "advice")},
        }
        for kind, row in rows.items()
    }


def _facts(each: SettingResult) -> dict[str, Any]:
    """What the list knows of a setting. `measured`: what no row has; memory and minutes are of a job."""
    held = [job.seconds for summary in each.summaries for job in summary.jobs]
    minutes = max([*held, *(summary.allocated_seconds / summary.attempts for summary in each.summaries)]) / 60
    measured = {
        "odd": _odd(each),
        "crowded": next(
            (summary for summary in each.summaries if summary.threads_on_node > summary.cpus_of_node), None
        ),
        "memory_mb": _memory_mb(each),
        "minutes": minutes,
        "minutes_wanted": max(LEAST_MINUTES, math.ceil(minutes * (1 + MARGIN) + START_SECONDS / 60)),
    }
    return {"each": each, "row": each.row, "run": each.run, "measured": measured, "least_repeats": LEAST_REPEATS}


def _odd(each: SettingResult) -> Mapping[str, Any] | None:
    """The repeat that is farthest from the others, and how many times as fast it is."""
    timed = [repeat for repeat in each.repeats if repeat.speed]
    if not timed or not (odd := oddest(each.speeds)):
        return None
    repeat = timed[odd[0]]
    hosts = repeat.summary.hosts if repeat.summary else ()
    return {"repeat": repeat.run.repeat + 1, "ratio": odd[1], "hosts": hosts}


def _memory_mb(each: SettingResult) -> int | None:
    """What a node of the jobs needs, a margin included; None where that, or what was asked for, is not known."""
    measured = any(summary.peak_main_memory_bytes for summary in each.summaries)
    requested_mb = each.job and each.job.memory_mb
    return request(each.run, each.summaries, each.job).memory_mb if requested_mb and measured else None
