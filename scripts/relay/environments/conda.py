"""Conda environments: created from a file where that is asked for, and activated in a job's shell.

Snakemake could do both. It wants a conda that is newer than what several centres have, on the machine that plans, even
for an environment that is there already. What is used here works with conda 4.6 and later, and only where it is needed:
`conda env create` on the login node for a file, `conda shell.posix activate` on the node
(https://docs.conda.io/projects/conda/en/stable/dev-guide/deep-dives/activation.html).
"""

import shlex
import shutil
import subprocess
from pathlib import Path

from relay.base.errors import UserError
from relay.base.files import remove, sha256, write_text
from relay.environments import versioned

CREATED = Path("results/conda")
COMPLETE = "torch-relay-complete"  # written last, with what there was then


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
    """Create the environment of a file, unless it is whole. Raises UserError where conda cannot.

    The folder is a link to one beside it, because conda writes an environment's place into its files. One that is
    replaced stays until the next one is made, for the jobs that still use it.
    """
    by_hand = f"conda env create --file {shlex.quote(str(file))} --name NAME"
    remedy = f"where there is one, such as on a node: `{by_hand}`, and put the name under environment.conda"
    with versioned.only_one(folder) as lock:  # two stacks may name one file
        if is_whole(folder):
            print(f"environment: {folder} is there")
            return
        versioned.clear(folder, but=folder.resolve())
        if shutil.which("conda") is None:
            raise UserError(f"{file}: this machine has no `conda` to create the environment with; create it {remedy}")
        place = versioned.next_version(folder)
        words = ["conda", "env", "create", "--quiet", "--file", str(file), "--prefix", str(place)]
        done = subprocess.run(words, check=False, pass_fds=[lock])
        if done.returncode != 0 or not (place / "bin" / "python").exists():
            shutil.rmtree(place, ignore_errors=True)
            failed = "conda could not create the environment (its words are above)"
            raise UserError(f"{file}: {failed}; or create it {remedy}")
        lists = [*place.glob("conda-meta/*.json"), *place.glob("lib/python3*/site-packages/*.dist-info/RECORD")]
        write_text(place / COMPLETE, "".join(f"{file.relative_to(place)}\n" for file in lists))
        if not folder.is_symlink():
            remove(folder)  # an earlier version of this project made it there
        versioned.point(folder, place)


def is_whole(folder: Path) -> bool:
    """Whether the environment was completed, and still has the lists of its packages' files, which nobody reads.

    Cleaners of old files take these first.
    """
    try:
        lists = (folder / COMPLETE).read_text(encoding="utf-8").splitlines()  # none where an earlier version made it
    except OSError:
        return False
    return all((folder / name).exists() for name in ("bin/python", *lists))


def activation(conda: str) -> str:
    """The shell's command that activates an environment, by its name or its folder.

    Another environment that is active, such as the driver's, is forgotten: conda would put the new one into its place
    on the PATH, perhaps behind the driver's Python.
    """
    return f'unset CONDA_SHLVL; eval "$(conda shell.posix activate {shlex.quote(conda)})"'
