"""The archive of a day with a GPU: `summary.md`, then figures and logs, as far as they fit."""

import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOST_ARCHIVE_BYTES, MOST_FILE_BYTES = 13_000_000, 200_000
KEPT = (".md", ".json", ".csv", ".tsv", ".log", ".html", ".sbatch", ".yaml", ".txt")
LEFT_OUT = ("datasets", "code", "snakemake", "checkpoints", ".snakemake")
NOT_FIGURES = ("venv", "nccl", "cache", "tmp")


def write(work: Path, output: Path) -> None:
    """Archive what is in a folder, and copy the archive to its place."""
    new = work / "archive.tar.gz"
    with tarfile.open(new, "w:gz") as archive:
        archive.add(work / "summary.md", "gpu-day/summary.md")
        for path in _files(work):
            if new.stat().st_size > MOST_ARCHIVE_BYTES:
                break
            with suppress(OSError):
                _add(archive, path, f"gpu-day/{path.relative_to(work)}", work / "part")
    output.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(new, output)


def _files(work: Path) -> Iterator[Path]:
    """Figures and logs, the shortest paths first: pages before what they are made of."""
    paths = []
    for folder, folders, names in os.walk(work):
        folders[:] = [name for name in folders if name not in (*LEFT_OUT, *NOT_FIGURES)]
        paths += [Path(folder) / name for name in names if name.endswith(KEPT)]
    return iter(sorted(paths, key=lambda path: (len(path.parts), str(path))))


def _add(archive: tarfile.TarFile, path: Path, name: str, copy: Path) -> None:
    """Add a file, or of a long one its end; it may grow meanwhile."""
    with path.open("rb") as file:
        size = path.stat().st_size
        file.seek(max(0, size - MOST_FILE_BYTES))
        copy.write_bytes(file.read(MOST_FILE_BYTES))
    archive.add(copy, name)
