"""The answer in words, which are in `workflow/report/words.j2` and `certainty.j2`; and figures that only words need.

Page, terminal, Markdown and script say the same, because all ask here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

from relay.base.entry import ROOT
from relay.base.grouped import grouped
from relay.base.printable import printable
from relay.comparison import columns, scaling, wording
from relay.comparison.answer import DISTURBED, Answer
from relay.comparison.candidates import Candidate
from relay.comparison.choice import Compared, speed_up
from relay.comparison.setting_result import quality, relative_speed
from relay.comparison.statistics import MOST_REPEATS, band
from relay.spec.labels import counted
from relay.training.step_split import COLUMNS

MOST = 0.5  # of the difference: a part that takes less of it is not the reason
WORTH_TELLING = 0.1  # of a step's time
FAR_APART = 2  # times: so far apart, repeats of one setting were disturbed
NEIGHBOURS = ("virtual", "shared nodes", "quota", "other programs")  # doubts of what else has computed there
OUT_OF_QUESTION = 4  # times as fast as it looks, a setting would have to be
TEMPLATES = ROOT / "workflow" / "report"
EMPTY = "\0"  # an empty line of a command, which is a part of it
# What can be told, and the template with the macro of this name that tells it: as a line, or as several paragraphs.
LINES = {
    "sentence": "words.j2",
    "certainty": "certainty.j2",
    "in_short": "certainty.j2",
    "why_not_the_fastest": "words.j2",
    "not_recommended": "words.j2",
    "jobs": "words.j2",
}
PARAGRAPHS = {"doubts": "certainty.j2", "reasons": "words.j2", "not_measured": "words.j2"}


def told(what: str, *about: Any) -> str:
    """One of `LINES` about an answer, and about what else its macro takes; '' where there is nothing to tell."""
    return " ".join(_paragraphs(LINES[what], what, *about))


def paragraphs(what: str, answer: Answer) -> list[str]:
    """One of `PARAGRAPHS` about an answer."""
    return _paragraphs(PARAGRAPHS[what], what, answer)


def _paragraphs(template: str, macro: str, *about: Any) -> list[str]:
    """What a macro of a template says, each paragraph in one line."""
    text = getattr(environment().get_template(template).module, macro)(*about)
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def lines(template: str, **about: Any) -> list[str]:
    """The lines of a text that a template makes, without empty ones but for those that are marked as `EMPTY`."""
    text = environment().get_template(template).render(**about)
    return [line.replace(EMPTY, "") for line in text.split("\n") if line.strip()]


def markdown(template: str, **about: Any) -> str:
    """The Markdown that a template makes."""
    text = environment().get_template(template).render(**about)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def markdown_table(rows: Sequence[Any], headers: str | Sequence[str] = "keys") -> str:
    """A table of rows that have their texts by heading, or in the order of the `headers`."""
    shown = [
        {name: cell(text) for name, text in row.items()} if isinstance(row, dict) else [*map(cell, row)] for row in rows
    ]
    return tabulate(shown, headers=headers, tablefmt="github", disable_numparse=True)


def cell(text: str) -> str:
    """A text that cannot end its cell or its line, and is neither HTML nor a link."""
    return " ".join(printable(str(text)).split()).replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


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
        *wording.FIGURES, counted, size, speed_up, undecided, ends_first, slower_by, beside_computing,
        columns.speed_in_unit, columns.unit_of, columns.result, columns.reason_title, wording.speed_and_spread,
        scaling.shown, markdown_table, cell, coded,
    )  # fmt: skip
    templates.filters |= {function.__name__: function for function in named} | {"quote": shlex.quote}
    templates.filters |= {what: partial(told, what) for what in LINES}
    templates.filters |= {what: partial(paragraphs, what) for what in PARAGRAPHS}
    templates.globals |= {"quality": quality, "neighbours": NEIGHBOURS, "most_repeats": MOST_REPEATS}
    templates.globals |= {"most_named": wording.MOST_NAMED, "missing": wording.MISSING}
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


def ends_first(answer: Answer) -> Iterator[tuple[Candidate, bool, float]]:
    """Which other setting ends first for more epochs, and which for fewer, and from how many on.

    Of several, that whose number of epochs is nearest to the one asked for. True stands for more.
    """
    best, crossings = answer.best, []
    assert best is not None
    for each in answer.others if answer.over and not answer.goal else ():
        epochs = _same_end(each, best, answer.rules.margin)
        if epochs and epochs > 1:
            crossings.append((abs(epochs - best.epochs), epochs, each.other))
    for more in (True, False):
        beyond = [each for each in crossings if (each[1] > best.epochs) is more]
        if beyond:
            _, epochs, other = min(beyond, key=lambda each: each[0])
            yield other, more, epochs


def _same_end(compared: Compared, best: Candidate, margin: float) -> float | None:
    """With how many epochs another setting ends when the best one does, and for more, or for fewer, before it.

    None where it never does. None as well for chains of jobs, whose starts grow with the training: they take nothing
    once.
    """
    start, other_start = best.start_seconds, compared.other.start_seconds
    epoch, other_epoch = (
        (seconds - once) / best.epochs
        for seconds, once in ((1 / best.rate, start), (1 / best.rate / compared.ratio.value, other_start))
    )
    alike = band(margin)[0] * max(epoch, other_epoch) <= min(epoch, other_epoch)
    if alike or not start or not other_start or (start < other_start) is (epoch < other_epoch):
        return None
    epochs = (other_start - start) / (epoch - other_epoch)
    return epochs if (epochs > best.epochs) is (start < other_start) else None


def undecided(answer: Answer) -> Mapping[str, Any]:
    """What the measurements do not tell of an answer that is `unclear`, and what would tell.

    `groups`: settings that cost the same and would begin to be better at the same speed, together. `far`: those that
    look clearly too slow. `among`: the recommended one and all of them. `widest` is that of these whose repeats are
    farthest apart: its fastest is `spread` times as fast as its slowest. `repeats_to_tell` of each would tell, in so
    many `hours`; None where more would hardly help.
    """
    assert answer.best is not None
    far = [each for each in answer.unclear if each.ratio.value * OUT_OF_QUESTION < answer.turns_at(each)]
    far = far if len(far) > 1 else []
    near = [each for each in answer.unclear if not any(each is other for other in far)]
    among = [answer.best, *(each.other for each in answer.unclear)]
    spreads = [max(each.speeds) / min(each.speeds) for each in among]
    spread = max(spreads)
    in_vain = any(each.kind in NEIGHBOURS for each in answer.doubts) and spread >= FAR_APART
    repeats = 0 if in_vain else answer.repeats_to_tell or 0
    return {
        "groups": [*grouped(near, lambda each: (each.other.cost, answer.turns_at(each))).values()],
        "far": far,
        "among": among,
        "widest": among[spreads.index(spread)],
        "spread": spread,
        "disturbed": spread >= DISTURBED,
        "far_apart": spread >= FAR_APART,
        "repeats_to_tell": repeats,
        "hours": sum(each.training_hours * (repeats - len(each.repeats)) for each in among),
    }
