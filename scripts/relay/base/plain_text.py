"""Rich's tables and lines as plain text, for a terminal or a log of any kind."""

from __future__ import annotations

import io
import re

from rich.console import Console, RenderableType

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and what turns the direction


def plain_text(*parts: RenderableType, width: int) -> str:
    """The parts below each other, in lines of at most `width` without blanks at their ends."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False).print(*parts, sep="\n")
    return printable("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def printable(text: str) -> str:
    """The text with control characters as Python writes them: a terminal would obey them."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
