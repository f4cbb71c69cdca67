"""Rich's tables and lines as plain text, for a terminal or a log of any kind."""

import io

from rich.console import Console, RenderableType

from relay.base.printable import printable


def plain_text(*parts: RenderableType, width: int) -> str:
    """The parts below each other, in lines of at most `width` without blanks at their ends."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False).print(*parts, sep="\n")
    return printable("\n".join(line.rstrip() for line in text.getvalue().splitlines()))
