"""Conda environments: created from a file where that is asked for, and activated in a job's shell.

Snakemake could do both. It wants a conda that is newer than what several centres have, on the machine that plans, even
for an environment that is there already. What is used here works with conda 4.6 and later, and only where it is needed:
`conda env create` on the login node for a file, `conda shell.posix activate` on the node
(https://docs.conda.io/projects/conda/en/stable/dev-guide/deep-dives/activation.html).
"""

import json
import shlex
import shutil
import subprocess
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import sha256, write_json
from relay.environments.versioned import has_files, has_packages, only_one, site_packages

CREATED = Path("results/conda")
COMPLETE = "torch-relay-complete"  # written last, with what there was then
META = "conda-meta"


def creates(conda: str) -> bool:
    """Whether this is a file that creates an environment, and not a name or a folder of one that is there."""
    return conda.endswith((".yaml", ".yml"))


def folder_of(conda: str) -> Path | None:
    """The folder of an environment, also of one that is still to be created; None for a name.

    `conda` is a name, or the path of a folder or of a file that creates the environment.
    """
    if not creates(conda):
        return Path(conda) if "/" in conda else None
    file = Path(conda)
    return CREATED.resolve() / f"{file.stem}-{sha256(file)[:12]}"


def create(file: Path, folder: Path) -> None:
    """Create the environment of a file in a folder, unless it is whole. Raises UserError where conda cannot."""
    by_hand = f"conda env create --file {shlex.quote(str(file))} --name NAME"
    remedy = f"where there is one, such as on a node: `{by_hand}`, and put the name under environment.conda"
    with only_one(folder):  # two stacks may name one file
        if _is_whole(folder):
            print(f"environment: {folder} is there")
            return
        if shutil.which("conda") is None:
            raise UserError(f"{file}: this machine has no `conda` to create the environment with; create it {remedy}")
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted creation
        words = ["conda", "env", "create", "--quiet", "--file", str(file), "--prefix", str(folder)]
        if subprocess.run(words, check=False).returncode != 0 or not (folder / "bin" / "python").exists():
            failed = "conda could not create the environment (its words are above)"
            raise UserError(f"{file}: {failed}; or create it {remedy}")
        _mark(folder)


def _mark(folder: Path) -> None:
    """Write down conda's packages and pip's. A package is left out whose files another one has replaced."""
    place = site_packages(folder)
    pips = [about.name for about in place.glob("*.dist-info") if has_files(place, about.name)]
    condas = [file.name for file in folder.glob(f"{META}/*.json") if has_packages(folder, (), _files(file))]
    write_json(folder / COMPLETE, {"pip": pips, "conda": condas})


def is_known_whole(folder: Path) -> bool:
    """Whether the environment was completed, and still has the lists of its packages' files, which nobody reads.

    Cleaners of old files take these first.
    """
    try:
        marked = _marked(folder)
    except (OSError, ValueError):
        return False
    pips = (site_packages(folder) / name / "RECORD" for name in marked.get("pip", ()))
    return all(file.exists() for file in (*pips, *(folder / META / name for name in marked.get("conda", ()))))


def _is_whole(folder: Path) -> bool:
    """Whether the environment was completed, and has every file of the packages that it had then."""
    try:
        marked = _marked(folder)
        files = [file for name in marked.get("conda", ()) for file in _files(folder / META / name)]
        return has_packages(folder, marked.get("pip", ()), files)
    except (OSError, ValueError):
        return False


def _marked(folder: Path) -> dict[str, list[str]]:
    """The names of conda's packages and pip's. Raises OSError or ValueError where there are none."""
    marked: dict[str, list[str]] = json.loads((folder / COMPLETE).read_text(encoding="utf-8") or "{}")
    return marked  # empty where an earlier version has made it


def _files(meta: Path) -> list[str]:
    """The files of one of conda's packages, from the environment's folder."""
    files: list[str] = json.loads(meta.read_text(encoding="utf-8")).get("files", [])
    return files


def activation(conda: str) -> str:
    """The shell's command that activates an environment, by its name or its folder.

    Another environment that is active, such as the driver's, is forgotten: conda would put the new one into its place
    on the PATH, perhaps behind the driver's Python.
    """
    return f'unset CONDA_SHLVL; eval "$(conda shell.posix activate {shlex.quote(conda)})"'
