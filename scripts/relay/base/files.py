"""Files that are complete or absent."""

import hashlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from relay.base.errors import UserError
from relay.chain import files

MISSING = "is missing"
CHECKSUM_BYTES = hashlib.sha256().digest_size


@contextmanager
def errors_in_one_line(path: Path, trouble: str, remedy: str = "") -> Iterator[None]:
    """Raise UserError for an OSError, naming its file, or else `path`: who uses a disk can mend or avoid it."""
    try:
        yield
    except OSError as error:
        fault = f"{error.filename or path}: {trouble}: {error.strerror or error}"
        raise UserError(f"{fault}; {remedy}" if remedy else fault) from error


@contextmanager
def fresh_folder(place: Path) -> Iterator[Path]:
    """An empty folder beside `place`, for what is then renamed there; what is left of it is removed at the end.

    What a killed process left is removed first. Only one process at a time may make what is to lie there.
    """
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, as `write_bytes` does. Raises OSError."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file beside its place, make it durable, and rename it there: a reader sees all of it or none.

    The folder is made where there is none. Raises OSError, and leaves nothing of what could not be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_bytes(path, content)


def with_checksum(content: bytes) -> bytes:
    """The content of a file in which no bit changes unseen: it begins with the SHA-256 of the rest."""
    return hashlib.sha256(content).digest() + content


def has_checksum(path: Path) -> bool:
    """Whether a file is whole, and as `with_checksum` made it. Raises OSError."""
    with path.open("rb") as stream:
        return stream.read(CHECKSUM_BYTES) == hashlib.file_digest(stream, "sha256").digest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON, all of it or none. Raises OSError."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_json_over(path: Path, value: Any) -> None:
    """Write JSON of a file that is the project's own, also where a folder has come into its place. Raises OSError."""
    if path.is_dir():
        remove(path)
    write_json(path, value)


def write_json_or_say(path: Path, value: Any) -> None:
    """Write JSON, all of it or none; a line on stderr where it cannot be written, as on a full disk."""
    try:
        write_json(path, value)
    except OSError as error:
        with suppress(OSError):  # the log may be on the same disk
            print(f"{path}: cannot be written: {error.strerror or error}", file=sys.stderr, flush=True)


def read_json(path: Path) -> Any:
    """Parsed JSON, or None where the file does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def read_json_or(path: Path, otherwise: Any) -> Any:
    """Parsed JSON, or `otherwise` where the file is missing, unreadable, no JSON, or of another type than that."""
    with suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return value if otherwise is None or isinstance(value, type(otherwise)) else otherwise
    return otherwise


def looked_at(path: Path, *, read: Callable[[Path], Any] = read_json, **expected: Any) -> tuple[str, dict[str, Any]]:
    """Why a file of JSON, an object, cannot be used ('' where it can), and what it holds.

    Where it names what is `expected`, it has to agree: else it is another's, copied there.
    """
    try:
        content = read(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})", {}
    except (ValueError, RecursionError):
        return "is damaged: it is no JSON", {}
    if content is None:
        return MISSING, {}
    if not isinstance(content, dict):
        return "is damaged: it is no object", {}
    for name, value in expected.items():
        if content.get(name, value) != value:
            return f"is for {_difference(name, content[name], value)}", {}
    return "", content


def _difference(name: str, is_for: Any, value: Any) -> str:
    """In words, of two blocks only what differs."""
    if not (isinstance(is_for, dict) and isinstance(value, dict)):
        return f"{name} {is_for}, not {value}"
    pairs = {key: (is_for.get(key), value.get(key)) for key in is_for | value}
    return ", ".join(f"{key} {old}, not {new}" for key, (old, new) in pairs.items() if old != new)


def end_of(path: Path | None, most_bytes: int, after: int = 0) -> str:
    """The last of a text file, without its first `after` bytes; '' where there is no file, or it cannot be read."""
    if path is None:
        return ""
    try:
        with path.open("rb") as stream:
            stream.seek(max(after, stream.seek(0, 2) - most_bytes))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def remove(path: Path) -> None:
    """Remove whatever lies there: a folder with its content, a file, or a link itself. Raises OSError."""
    files.remove(path, surely=True)


def sha256(path: Path) -> str:
    """The file's SHA-256, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
