"""Complete wheels of one module, in a folder that pip looks into: a package index that a test can change."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest


def write_wheel(folder: Path, name: str, version: str, *needs: str, body: str = "") -> Path:
    """Write a wheel whose module has `__version__` and `body`; `needs` are the requirements of its metadata."""
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    lines_of = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
    files = {
        f"{module}.py": f"__version__ = {version!r}\n{body}",
        f"{about}/METADATA": "\n".join(["Metadata-Version: 2.1", *lines_of, ""]),
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [_record_line(path, text) for path, text in files.items()]
    wheel = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{about}/RECORD": "\n".join([*lines, f"{about}/RECORD,,", ""])}.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return wheel


def _record_line(path: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(text.encode())}"


def lock_entry(wheel: Path) -> str:
    """A lock's entry for a wheel."""
    name, version = wheel.name.split("-")[:2]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{digest}\n"


def simple_index(folder: Path) -> None:
    """Make a folder of wheels an index: a page for each package, with each file's hash, as an index's pages have it."""
    pages: dict[str, list[str]] = {}
    for wheel in sorted(folder.glob("*.whl")):
        name = wheel.name.split("-")[0].replace("_", "-")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        link = f"{wheel.as_uri().replace('+', '%2B')}#sha256={digest}"
        pages.setdefault(name, []).append(f'<a href="{link}">{wheel.name}</a>')
    for name, links in pages.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")


def only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have pip look into this folder alone, and keep what it finds in a cache beside it."""
    own = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": "/dev/null"}
    for name, value in (own | {"XDG_CACHE_HOME": str(folder.parent / "cache")}).items():
        monkeypatch.setenv(name, value)
    return folder
