"""A Python like this one, whose processes stop or kill themselves at a named point: see `hooks/relay_test_hooks.py`."""

import json
import sysconfig
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

from relay.environments.versioned import site_packages

HOOKS = Path(__file__).parent / "hooks"


@dataclass(frozen=True)
class Hook:
    """Where, in which rank, at which call, and by which signal; `once` is a file that tells that it has happened."""

    at: str
    once: str
    signal: str = "SIGKILL"
    rank: int | None = None
    call: int = 1

    def environment(self) -> dict[str, str]:
        return {"RELAY_TEST_HOOK": json.dumps(asdict(self))}

    def happened(self) -> bool:
        return Path(f"{self.once}.pid").exists()

    def pid(self) -> int:
        """The process that it has happened to."""
        return int(Path(f"{self.once}.pid").read_text())


def empty(folder: Path) -> tuple[Path, Path]:
    """A virtual environment in `folder`: its Python, and where its packages go."""
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python", site_packages(folder)


def link(packages: Path, *folders: Path) -> None:
    """Let it have the packages of these folders, too, but for torchvision, which libraries would import."""
    for path in (path for folder in folders for path in folder.iterdir()):
        if "torchvision" not in path.name and path.suffix != ".pth" and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)


def interpreter(folder: Path) -> Path:
    """The Python of one with all packages of this process's, and the hooks."""
    python, packages = empty(folder)
    (packages / "hooks.pth").write_text(f"{sysconfig.get_path('purelib')}\n{HOOKS}\nimport relay_test_hooks\n")
    return python
