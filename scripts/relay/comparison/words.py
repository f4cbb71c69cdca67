"""The answer in words, which are in `workflow/report/words.j2` and `certainty.j2`; and figures that only words need.

Page, terminal, Markdown and script say the same, because all ask here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from tabulate import tabulate

from relay.base.entry import ROOT
from relay.base.grouped import gathered, grouped
from relay.base.printable import printable
from relay.comparison import columns, scaling, wording
from relay.comparison.answer import DISTURBED, Answer
from relay.comparison.candidates import Candidate, ends_first_from
from relay.comparison.choice import Compared
from relay.comparison.quality import quality
from relay.comparison.request import Request
from relay.comparison.statistics import MOST_REPEATS, Estimate, against_itself, ratio_of_days, standing
from relay.spec.labels import counted
from relay.training.step_split import COLUMNS

MOST = 0.5  # of the difference: a part that takes less of it is not the reason
WORTH_TELLING = 0.1  # of a step's time
FAR_APART = 2  # times: so far apart, repeats of one setting were disturbed
NEIGHBOURS = ("virtual", "shared nodes", "quota", "other programs")  # doubts of what else has computed there
OUT_OF_QUESTION = 4  # times as fast as it looks, a setting would have to be


@dataclass(frozen=True)
class SlowerPart:
    """The part of a step that makes a setting slower: its shares of the slow and the quick setting's steps.

    `whole_seconds`: how much longer the slow one's piece of work takes, all parts together.
    """

    name: str
    share: float
    share_of_other: float | None
    whole_seconds: float


def slower_by(quick: Candidate, slow: Candidate) -> SlowerPart | None:
    """The part that is most of what the slow setting takes longer; None without one, and where none was observed."""
    shares = [{part: each.row[name] for part, name in COLUMNS.items()} for each in (slow, quick)]
    if any(each["compute"] is None for each in shares):
        return None
    its, others = ({part: share or 0.0 for part, share in each.items()} for each in shares)  # not observed is little
    longer = {
        part: slow.seconds_per_piece.value * its[part] - quick.seconds_per_piece.value * others[part] for part in its
    }
    whole = sum(longer.values())
    part = max(longer, key=lambda each: longer[each])
    return SlowerPart(part, its[part], shares[1][part], whole) if whole > 0 and longer[part] >= MOST * whole else None


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
    for other in (each.other for each in answer.others):
        for slow_to_start, quick in ((other, best), (best, other)):
            epochs = ends_first_from(slow_to_start, quick, answer.rules.margin)
            if epochs and epochs > 1 and (epochs > best.epochs) is (quick is best):
                crossings.append((abs(epochs - best.epochs), epochs, other))
    for more in (True, False):
        beyond = [each for each in crossings if (each[1] > best.epochs) is more]
        if beyond:
            _, epochs, other = min(beyond, key=lambda each: each[0])
            yield other, more, epochs


def beside_itself(best: Candidate, margin: float) -> Mapping[str, Estimate | bool] | None:
    """A/A: the `ratio` of the setting beside itself, and whether it would be called a `tie`; None for one repeat."""
    ratio = against_itself(list(best.rates.values()))
    return {"ratio": ratio, "tie": standing(ratio, margin) == "tie"} if ratio else None


def first_and_last_day(best: Candidate) -> Iterator[tuple[str, str, Estimate]]:
    """The first and the last day of a setting's repeats, and the ratio of the last to the first, if these differ."""
    days = gathered(
        ((each.summary.started_at or "")[:10], best.rates[each.run.repeat])
        for each in best.repeats
        if each.run.repeat in best.rates and each.summary
    )
    if len(days) > 1:
        (first, before), (last, after) = min(days.items()), max(days.items())
        yield first, last, ratio_of_days(after, before)


@dataclass(frozen=True)
class Undecided:
    """The settings of which the intervals do not tell whether they are better, and what would tell.

    `groups`: those that cost the same and would begin to be better at the same speed, together. `far`: those that look
    clearly too slow. `among`: the recommended one and all of them. `widest` is that of these whose repeats are farthest
    apart: its fastest is `spread` times as fast as its slowest. `repeats_to_tell` of each would tell, in so many
    `hours`; None where more would hardly help.
    """

    groups: Sequence[Sequence[Compared]]
    far: Sequence[Compared]
    among: Sequence[Candidate]
    widest: Candidate
    repeats_to_tell: int | None

    @property
    def spread(self) -> float:
        return _spread(self.widest)

    @property
    def disturbed(self) -> bool:
        """Whether something has disturbed a repeat of one setting."""
        return self.spread >= DISTURBED

    @property
    def far_apart(self) -> bool:
        """Whether repeats of one setting are so far apart that nothing can be told by them."""
        return self.spread >= FAR_APART

    @property
    def hours(self) -> float:
        return sum(each.training_hours * ((self.repeats_to_tell or 0) - len(each.speeds)) for each in self.among)


def undecided(answer: Answer) -> Undecided:
    """What the measurements do not tell of an answer that is `unclear`."""
    assert answer.best is not None
    far = [each for each in answer.unclear if each.ratio.value * OUT_OF_QUESTION < answer.turns_at(each)]
    far = far if len(far) > 1 else []
    near = [each for each in answer.unclear if not any(each is other for other in far)]
    groups = grouped(near, lambda each: (each.other.cost, answer.turns_at(each)))
    among = [answer.best, *(each.other for each in answer.unclear)]
    widest = max(among, key=_spread)
    in_vain = any(each.kind in NEIGHBOURS for each in answer.doubts) and _spread(widest) >= FAR_APART
    return Undecided(list(groups.values()), far, among, widest, None if in_vain else answer.repeats_to_tell)


def _spread(candidate: Candidate) -> float:
    return max(candidate.speeds) / min(candidate.speeds)


TEMPLATES = ROOT / "workflow" / "report"
EMPTY = "\0"  # an empty line of a command, which is a part of it


def sentence(answer: Answer) -> str:
    """What is recommended, and what to ask for."""
    return " ".join(_paragraphs("words.j2", "sentence", answer))


def certainty(answer: Answer) -> str:
    """How certain the answer is, and what would make it certain; where there is none, why."""
    return " ".join(_paragraphs("certainty.j2", "certainty", answer))


def in_short(answer: Answer) -> str:
    """The same in one sentence."""
    return " ".join(_paragraphs("certainty.j2", "in_short", answer))


def doubts(answer: Answer) -> list[str]:
    """Why it is not certain whatever the intervals say, each reason as a clause."""
    return _paragraphs("certainty.j2", "doubts", answer)


def why_not_the_fastest(answer: Answer) -> str:
    """Why the fastest setting is not recommended; '' where it is, or where `certainty` says it."""
    return " ".join(_paragraphs("words.j2", "why_not_the_fastest", answer))


def reasons(answer: Answer) -> list[str]:
    """The further reasons, a few sentences each."""
    return _paragraphs("words.j2", "reasons", answer)


def not_measured(answer: Answer) -> list[str]:
    """What the answer does not rest on, because it was not measured."""
    return _paragraphs("words.j2", "not_measured", answer)


def not_recommended(answer: Answer, compared: Compared) -> str:
    """Why another setting is not recommended, in a few words."""
    return " ".join(_paragraphs("words.j2", "not_recommended", answer, compared))


def jobs(request: Request) -> str:
    """The time that is asked for, such as '30 minutes' or, as a chain, '3 jobs of 60 minutes'."""
    return " ".join(_paragraphs("words.j2", "jobs", request))


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
        *wording.FIGURES, counted, size, undecided, ends_first, beside_itself, first_and_last_day, slower_by,
        beside_computing, columns.speed_in_unit, columns.unit_of, columns.result, columns.reason_title,
        wording.speed_and_spread, scaling.shown, markdown_table, cell, coded, sentence, certainty, in_short, doubts,
        why_not_the_fastest, reasons, not_measured, not_recommended, jobs,
    )  # fmt: skip
    templates.filters |= {function.__name__: function for function in named} | {"quote": shlex.quote}
    templates.globals |= {"quality": quality, "neighbours": NEIGHBOURS, "most_repeats": MOST_REPEATS}
    templates.globals |= {"most_named": wording.MOST_NAMED, "missing": wording.MISSING}
    return templates


def size(candidate: Candidate) -> str:
    """What a setting computes on, such as '2 GPUs'."""
    return counted(candidate.size, "GPU" if candidate.on_gpus else "CPU core")
