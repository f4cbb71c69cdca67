"""Times of day, and lengths of time, as people read them."""

import time
from datetime import datetime, timedelta

DAY_SECONDS = 86_400
APART = timedelta(hours=12)  # times so far apart are of other days
_AHEAD_SECONDS = time.time() - time.monotonic()


def steady() -> float:
    """The time in seconds since 1970, by a clock that nobody sets. Linux stops it while the machine sleeps."""
    return _AHEAD_SECONDS + time.monotonic()


def clock(at: float) -> str:
    """The local time of `at`, in seconds since 1970: 17:05, or with its date where that is a day away."""
    return time.strftime("%H:%M" if abs(at - time.time()) < DAY_SECONDS else "%a %d %b %H:%M", time.localtime(at))


def duration(seconds: float) -> str:
    """A length of time with at most two digits, or with its largest two units: 4.2 s, 42 s, 3 min 05 s, 1 d 04 h."""
    if seconds < 9.5:
        return f"{seconds:.2g} s" if seconds >= 0.001 else "0 s"
    whole = round(seconds)
    for unit, size, lesser, part in (("d", DAY_SECONDS, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02} {lesser}"
    return f"{whole} s"


def other_day(one: str, other: str) -> bool:
    """Whether two times in ISO's format are so far apart that the machines may be in another state."""
    return abs(datetime.fromisoformat(one) - datetime.fromisoformat(other)) >= APART
