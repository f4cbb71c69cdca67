"""What a terminal shows: the part of its language that the driver and rich use, on an endless screen."""

from __future__ import annotations

import re

_PARTS = re.compile(r"\x1b\[(?P<number>\d*)(?P<what>[FKJ])|\x1b\[[\d;]*m|\r|\n|[^\x1b\r\n]+")


def screen(printed: str) -> list[str]:
    """The lines of the screen, without blanks at their ends, once all of it is printed. Colours are left out.

    Raises ValueError for what is not understood.
    """
    lines, row, column, place = [""], 0, 0, 0
    while place < len(printed):
        found = _PARTS.match(printed, place)
        if found is None:
            raise ValueError(f"not understood: {printed[place : place + 20]!r}")
        place, text = found.end(), found[0]
        if found["what"] == "F":
            row, column = max(0, row - int(found["number"] or 1)), 0
        elif found["what"] == "K":
            lines[row] = lines[row][:column]
        elif found["what"] == "J":
            lines[row:] = [lines[row][:column]]
        elif text == "\n":  # as a terminal does it: the driver of the terminal adds a carriage return
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif text == "\r":
            column = 0
        elif not text.startswith("\x1b"):
            line = lines[row].ljust(column)
            lines[row], column = line[:column] + text + line[column + len(text) :], column + len(text)
    return [line.rstrip() for line in lines]
