"""What `pip install -e .` asks this checkout for (PEP 660): a wheel that puts it on an environment's path.

It needs no package and no network, and writes nothing into the checkout, which may be read-only. Snakemake finds its
plugins by listing folders, so that these are on the path as they are.
"""

import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def files() -> dict[str, str]:
    """The wheel's files by their names in site-packages; the list of them comes last."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    commands = "".join(f"{name} = {function}\n" for name, function in project["scripts"].items())
    texts = {
        "torch_relay.pth": f"{ROOT}/scripts\n{ROOT}/workflow/plugins\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: torch-relay\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{commands}",
    }
    record = f"{about}/RECORD"
    return texts | {record: "".join(f"{name},,\n" for name in [*texts, record])}


def build_editable(wheel_directory: str, *_: Any) -> str:
    """Write the wheel, and return its name: one of the functions that pip calls by their names."""
    texts = files()
    name = f"{Path([*texts][-1]).parent.stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory, name), "w") as wheel:
        for file, text in texts.items():
            wheel.writestr(file, text)
    return name


def build_wheel(*_: Any) -> str:
    """Refuse a copy of the package alone: the workflow would be missing."""
    sys.exit("Torch Relay is a workflow, which is run from its checkout: pip install -e .")
