"""The answer in words, which are in `workflow/report/words.j2`: page, terminal, Markdown and script say the same."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from relay.comparison import because, wording
from relay.comparison.answer import DISTURBED, Answer
from relay.comparison.candidates import Candidate
from relay.comparison.choice import Compared
from relay.comparison.quality import quality
from relay.comparison.request import Request
from relay.comparison.statistics import MOST_REPEATS
from relay.spec.labels import counted

TEMPLATES = Path(__file__).resolve().parents[3] / "workflow" / "report"


def sentence(answer: Answer) -> str:
    """What is recommended, and what to ask for."""
    return " ".join(_paragraphs("sentence", answer))


def certainty(answer: Answer) -> str:
    """How certain the answer is, and what would make it certain; where there is none, why."""
    return " ".join(_paragraphs("certainty", answer))


def in_short(answer: Answer) -> str:
    """The same in one sentence."""
    return " ".join(_paragraphs("in_short", answer))


def why_not_the_fastest(answer: Answer) -> str:
    """Why the fastest setting is not recommended; '' where it is, or where `certainty` says it."""
    return " ".join(_paragraphs("why_not_the_fastest", answer))


def reasons(answer: Answer) -> list[str]:
    """The further reasons, a few sentences each."""
    return _paragraphs("reasons", answer)


def not_measured(answer: Answer) -> list[str]:
    """What the answer does not rest on, because it was not measured."""
    return _paragraphs("not_measured", answer)


def not_recommended(answer: Answer, found: Compared) -> str:
    """Why another setting is not recommended, in a few words."""
    return " ".join(_paragraphs("not_recommended", answer, found))


def jobs(request: Request) -> str:
    """The time that is asked for, such as '30 minutes' or, as a chain, '3 jobs of 60 minutes'."""
    return " ".join(_paragraphs("jobs", request))


def _paragraphs(macro: str, *about: Any) -> list[str]:
    """What a macro of the template says, each paragraph in one line."""
    text = getattr(environment().get_template("words.j2").module, macro)(*about)
    return [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text) if paragraph.strip()]


def lines(template: str, **about: Any) -> list[str]:
    """The lines of a text that a template makes, without empty ones."""
    return [line for line in environment().get_template(template).render(**about).splitlines() if line.strip()]


@cache
def environment() -> Environment:
    """The templates of the report, with all that they write figures with. What goes into HTML is escaped."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: ".html" in (name or ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = (*wording.FIGURES, counted, size, because.doubt, because.ends_first, because.beside_itself,
               because.first_and_last_day, because.slower_by, because.beside_computing)  # fmt: skip
    told = (sentence, certainty, in_short, why_not_the_fastest, reasons, not_measured, not_recommended, jobs)
    made.filters |= {function.__name__: function for function in (*figures, *told)} | {"quote": shlex.quote}
    made.globals |= {"quality": quality, "disturbed": DISTURBED, "most_repeats": MOST_REPEATS}
    made.globals |= {"most_named": wording.MOST_NAMED, "missing": wording.MISSING}
    return made


def size(candidate: Candidate) -> str:
    """What a setting computes on, such as '2 GPUs'."""
    return counted(candidate.size, "GPU" if candidate.on_gpus else "CPU core")
