"""What somebody most likely meant who wrote a value that a key does not take."""

import math
import re
from collections.abc import Sequence
from typing import Any

# What people write behind numbers, by what the names of keys hold.
UNITS = {
    "minutes": {"d": 1440.0, "h": 60.0, "m": 1.0},
    "time_limits": {"d": 1440.0, "h": 60.0, "m": 1.0},
    "hours": {"d": 24.0, "h": 1.0},
    "_mb": {"t": 1024.0**2, "g": 1024.0, "m": 1.0},
}
IN_UNIT = re.compile(r"([\d.]+) ?(d|h|m|t|g)(?:i?b|ays?|ours?|rs?|in|ins|inutes?)?", re.IGNORECASE)
CLOCK = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):00")  # as Slurm writes it
WORDS = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}


def hint(value: Any, allowed: str, location: Sequence[str | int]) -> str:
    """YAML takes `1e-3` and anything in quotes for text, and 2.10 for 2.1, which is seldom what was meant.

    Keys name their unit, and people write it behind the number.
    """
    if isinstance(value, bool) and allowed.startswith(("text", "non-empty")):
        return " (YAML takes yes, no, on and off for true or false: write it in quotes)"
    if isinstance(value, int | float) and (
        allowed.startswith(("text", "non-empty")) or str(value) in allowed.split(", ")
    ):
        return " (this is a number: write it in quotes)"
    if isinstance(value, str) and allowed == "true or false":
        return f" (this is text: write {WORDS[value.lower()]}, without quotes)" if value.lower() in WORDS else ""
    listed, blocks = allowed.startswith("a list"), "a block" in allowed
    several = listed or isinstance(location[-1], int)  # an axis has the place of its one value
    if isinstance(value, dict) and listed and blocks:
        return " (write - before its first key)"
    if isinstance(value, list) and not several and not blocks:
        return " (this is a list: write one value)"
    word = re.fullmatch(r"[1-9]\d*" if "number" in allowed else r"[A-Za-z/-][\w./=-]*", str(value))
    if word and type(value) in (int, str) and (listed or "keys strategy" in allowed):
        entry = f"{{{allowed.partition('keys ')[2].partition(',')[0]}: {value}}}" if blocks else value
        return f" (write [{entry}])" if listed else f" (write {entry})"
    if isinstance(value, str) and re.match(r"\w+:\S", value) and allowed.startswith("a block"):
        return " (write a space after the colon)"
    if not isinstance(value, str) or "number" not in allowed:
        return ""
    if re.fullmatch(r"\d+(, *\d+)+", value):
        one = " (write one number)" if "whole" in allowed else " (a number has a point, no comma)"
        return f" (this is text: write [{value}], without quotes)" if several else one
    try:
        number = _in_unit(value, next((str(step) for step in reversed(location) if isinstance(step, str)), ""))
    except ValueError:
        return ""
    if number != number // 1 and "whole" in allowed:
        return ""
    if not math.isfinite(number):
        return ""
    digits = str(int(number) if number.is_integer() else number)
    if "e" in digits and "." not in digits:
        digits = digits.replace("e", ".0e")  # without the point it is text to YAML once more
    return f" (this is text: write {digits}, without quotes)"


def _in_unit(text: str, key: str) -> float:
    """The number that a text means in the unit of a key, such as 120 of '2h' for runtime_minutes. Raises ValueError."""
    unit = next((factors for name, factors in UNITS.items() if name in key), {})
    if text.endswith("%"):
        return float(text[:-1]) / 100
    if "m" in unit and "h" in unit and (clock := CLOCK.fullmatch(text)):
        days, hours, minutes = (int(part or 0) for part in clock.groups())
        return (days * 24 + hours) * 60.0 + minutes
    match = IN_UNIT.fullmatch(text)
    return float(match[1]) * unit[match[2].lower()] if match and match[2].lower() in unit else float(text)
