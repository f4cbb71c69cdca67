"""Whether a command wrote outside of its folder, where that can be seen: beside its script, and behind its links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from relay.spec.script import Script

MOST_ENTRIES = 1_000  # of a folder that is looked at
SHOWN = 3


@contextmanager
def watched(script: Script, folder: Path) -> Iterator[None]:
    """While a command runs in `folder`: warn of files that come into the folders of the script and of its links.

    Files that were there before may be the user's, who edits them.
    """
    places = [Path(script.file).absolute().parent] if script.file else []
    places += [Path(target) for target in script.links.values()]
    own, before = folder.resolve(), {place: _entries(place) for place in places if place.is_dir()}
    yield
    paths = [place / name for place, names in before.items() for name in sorted(_entries(place) - names)]
    paths = [path for path in paths if path.resolve() not in (own, *own.parents)]
    if paths:
        more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
        print(
            f"warning: while the command ran, something wrote outside of its folder: "
            f"{', '.join(map(str, paths[:SHOWN]))}{more}; runs at the same time would disturb each other there: write "
            "below the working folder",
            flush=True,
        )


def _entries(place: Path) -> set[str]:
    """The files of a folder; of a very large one, none: to look at each would take minutes."""
    try:
        with os.scandir(place) as entries:
            first_entries = list(islice(entries, MOST_ENTRIES + 1))
            if len(first_entries) > MOST_ENTRIES:
                return set()
            return {entry.name for entry in first_entries if entry.is_file(follow_symlinks=False)}
    except OSError:
        return set()
