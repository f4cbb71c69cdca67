"""One escape for all that is shown to people: on terminals, in logs, tables, pictures, records and scripts."""

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # and what turns the direction
USER = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")  # of an address, perhaps with a password or a token


def printable(text: str) -> str:
    """The text with control characters as Python writes them, for a terminal would obey them; without passwords."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], USER.sub("***", text))
