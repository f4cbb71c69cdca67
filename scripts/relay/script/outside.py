"""Whether a command wrote outside of its folder, where that can be seen: beside its script, and behind its links."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from relay.spec.script import Script

MOST_ENTRIES = 1_000  # of a folder that is looked at
SHOWN = 3


class Outside:
    """Remembers what lies in the folders of the script and of its links, before the command begins."""

    def __init__(self, script: Script, folder: Path) -> None:
        places = [Path(script.file).absolute().parent] if script.file else []
        places += [Path(target) for target in script.links.values()]
        self._folder = folder.resolve()
        self._before = {place: _entries(place) for place in places if place.is_dir()}

    def changed(self) -> list[Path]:
        """What is new there. Files that were there before may be the user's, who edits them."""
        paths = []
        for place, before in self._before.items():
            paths += [place / name for name in sorted(_entries(place) - before)]
        return [path for path in paths if path.resolve() not in (self._folder, *self._folder.parents)]

    def warn(self) -> None:
        """Say it."""
        paths = self.changed()
        if paths:
            more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
            shown = ", ".join(map(str, paths[:SHOWN]))
            print(
                f"warning: while the command ran, something wrote outside of its folder: {shown}{more}; runs at the "
                "same time would disturb each other there: write below the working folder",
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
