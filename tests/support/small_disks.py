"""Small file systems in memory, mounted for a test, which it fills."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Mount = Callable[..., None]


@contextmanager
def mounts() -> Iterator[Mount]:
    """Mounts for real, until the context is left; skips the test where that is not allowed."""
    mounted: list[Path] = []

    def make(place: Path, *options: str) -> None:
        done = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True)
        if done.returncode and not mounted:
            pytest.skip(f"no mounts here: {done.stderr.strip()}")
        assert done.returncode == 0, done.stderr
        mounted.append(place)

    try:
        yield make
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", "--lazy", str(place)], capture_output=True)


def small(place: Path, mount: Mount, kilobytes: int) -> None:
    """Mount a file system of that size there."""
    place.mkdir(parents=True, exist_ok=True)
    mount(place, "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=755", "none")


def fill(place: Path) -> Path:
    """A file that takes all the room that is left."""
    path = place / "filler"
    with path.open("wb", buffering=0) as stream:
        try:
            while stream.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
    return path
