"""Downloading a file whose content is known: mirrors, retries with growing waits, HTTP ranges, a checksum.

pooch was considered: it neither resumes, nor tries a second mirror, nor notices a server that trickles. tenacity waits
and tries again, but does not count anew where a download has come further.
"""

import logging
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import requests
import urllib3

from relay.base.errors import UserError
from relay.base.files import errors_in_one_line
from relay.datasets.files import KnownFile, check_file, folder_of

# How long a server is waited for. ATTEMPTS are those in a row that bring at most so many PROGRESS_BYTES.
ATTEMPTS, PROGRESS_BYTES = 4, 1 << 16
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0
TIMEOUT_SECONDS = (10.0, 30.0)  # until there is a connection; between two of its bytes
SLOW_WINDOW_SECONDS, SLOWEST_BYTES_PER_SECOND = 30.0, 1000.0
_CHUNK_BYTES = 1 << 18
_LINE_SECONDS = 10.0  # between two lines on how far a download is
_BUSY = (408, 425, 429, 500, 502, 503, 504)
log = logging.getLogger(__name__)


class _Failed(Exception):
    """A server does not give the file: the next one is asked."""


class _WorthRetrying(_Failed):
    """The same server may do better in a moment."""


def download(file: KnownFile, mirrors: Sequence[str], directory: Path) -> Path:
    """The verified file in `directory`.

    If none gives it, raises UserError, one line with what each mirror did, and leaves nothing behind.
    """
    target, part = directory / file.name, directory / f"{file.name}.part"
    failures = []
    try:
        with errors_in_one_line(target, "cannot be written"):
            for mirror in mirrors:
                part.unlink(missing_ok=True)  # what another server sent may not be the same file
                url = f"{mirror.rstrip('/')}/{file.name}"
                try:
                    if mirror.startswith("file://"):
                        _copy(folder_of(mirror) / file.name, file, part)
                    else:
                        _fetch(url, file, part)
                    return part.replace(target)
                except _Failed as error:
                    log.warning("%s: %s", url, error)
                    failures.append(f"{url}: {error}")
    finally:
        part.unlink(missing_ok=True)
    remedy = "give a copy as dataset_root, or another server as dataset_mirror"
    raise UserError(f"{file.name}: could not be downloaded: {'; '.join(failures)}; {remedy}")


def _copy(source: Path, file: KnownFile, part: Path) -> None:
    """From a folder that serves as a mirror, with the same check."""
    try:
        shutil.copyfile(source, part)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise _Failed(str(error.strerror)) from error
    _check(part, file, _Failed)


def _fetch(url: str, file: KnownFile, part: Path) -> None:
    """Ask one server until the file is whole and verified. Raises _Failed with the last reason.

    Attempts in a row without progress are counted: a bad line may break a long download often.
    """
    most_bytes = failures = 0
    wait_seconds = FIRST_WAIT_SECONDS
    with requests.Session() as session:
        while True:
            try:
                return _attempt(session, url, file, part)
            except _WorthRetrying as error:
                held_bytes = _size_bytes(part)
                failures = 1 if held_bytes > most_bytes + PROGRESS_BYTES else failures + 1
                if failures >= ATTEMPTS:
                    raise
                most_bytes = max(most_bytes, held_bytes)
                pause_seconds = wait_seconds + random.uniform(0, FIRST_WAIT_SECONDS)
                log.warning("%s: %s; trying again in %.0f s", url, error, pause_seconds)
                time.sleep(pause_seconds)
                wait_seconds = min(2 * wait_seconds, LONGEST_WAIT_SECONDS)


def _attempt(session: requests.Session, url: str, file: KnownFile, part: Path) -> None:
    """Ask for what is missing, or for all of it where the server cannot resume; then verify."""
    offset_bytes = _size_bytes(part)
    # "identity": the checksum is of the bytes as they lie on the server, not decoded on the way.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset_bytes}-"} if offset_bytes else {})
    try:
        if offset_bytes < file.size_bytes:
            with session.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as response:
                _receive(response, _begin_bytes(response, offset_bytes, file, part), file, part)
    except (requests.exceptions.SSLError, ValueError) as error:  # also an address that cannot be read
        raise _Failed(_reason(error)) from error
    except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
        raise _WorthRetrying(_reason(error)) from error
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise _Failed(str(error)) from error  # requests finds no file with certificates
    # A file pieced together may have changed between the pieces: once more, from the start.
    _check(part, file, _WorthRetrying if offset_bytes else _Failed)


def _begin_bytes(response: requests.Response, offset_bytes: int, file: KnownFile, part: Path) -> int:
    """The position at which the body of this response begins. Raises _Failed where it is no part of the file."""
    status, code = f"{response.status_code} {response.reason}", response.status_code
    if code in _BUSY:
        raise _WorthRetrying(status)
    if code not in (200, 206, 416):
        raise _Failed(status)
    sent = response.headers.get("Content-Range", "")
    if code != 200 and not (code == 206 and sent.startswith(f"bytes {offset_bytes}-")):
        part.unlink(missing_ok=True)
        raise _WorthRetrying(f"{status} with the range {sent!r}, asked for bytes {offset_bytes}-")
    begin_bytes = offset_bytes if code == 206 else 0
    length = response.headers.get("Content-Length", "")
    if length.isdigit() and (whole_bytes := begin_bytes + int(length)) != file.size_bytes:
        raise _Failed(f"wrong content: {whole_bytes:,} bytes, expected {file.size_bytes:,}")
    return begin_bytes


def _receive(response: requests.Response, begin_bytes: int, file: KnownFile, part: Path) -> None:
    """Write the body. Raises if it ends early, is too long, or comes just fast enough never to be silent."""
    received_bytes, started = begin_bytes, time.monotonic()
    since, since_bytes, printed = started, begin_bytes, started
    with part.open("r+b" if begin_bytes else "wb") as stream:
        stream.seek(begin_bytes)
        while chunk := _next_chunk(response):
            stream.write(chunk)
            received_bytes += len(chunk)
            if received_bytes > file.size_bytes:
                raise _Failed(f"wrong content: more than the {file.size_bytes:,} bytes expected")
            now = time.monotonic()
            if now - printed >= _LINE_SECONDS or received_bytes == file.size_bytes:
                printed = now
                figures = f"{received_bytes / 1e6:.1f} of {file.size_bytes / 1e6:.1f} MB in {now - started:.0f} s"
                print(f"{file.name}: {figures}", file=sys.stderr, flush=True)
            if (window_seconds := now - since) >= SLOW_WINDOW_SECONDS:
                rate = (received_bytes - since_bytes) / window_seconds
                if rate < SLOWEST_BYTES_PER_SECOND:
                    raise _WorthRetrying(f"too slow: {rate:.0f} bytes/s over {window_seconds:.0f} s")
                since, since_bytes = now, received_bytes
    if received_bytes < file.size_bytes:
        raise _WorthRetrying(f"connection closed after {received_bytes:,} of {file.size_bytes:,} bytes")


def _next_chunk(response: requests.Response) -> bytes:
    """What has come, at least a byte; empty at the end and where the connection broke."""
    # read1, because a full read would wait for ever on a server that trickles.
    try:
        return response.raw.read1(_CHUNK_BYTES, decode_content=False)
    except urllib3.exceptions.ProtocolError:
        return b""


def _check(part: Path, file: KnownFile, failed: type[_Failed]) -> None:
    """Raises `failed` where the file is not the known one, and removes it."""
    try:
        check_file(part, file)
    except UserError as error:
        part.unlink(missing_ok=True)
        raise failed(f"wrong content: {str(error).removeprefix(f'{part}: ')}") from error


def _size_bytes(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: BaseException) -> str:
    """The system's own words, around which requests and urllib3 put theirs: Connection refused."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, urllib3.exceptions.ConnectTimeoutError) and not isinstance(
            inner, urllib3.exceptions.NewConnectionError
        ):
            return "no connection in time"
        if isinstance(inner, urllib3.exceptions.ReadTimeoutError):
            return "no answer in time"
        if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, requests.RequestException):
            return inner.strerror
        reason = getattr(inner, "reason", None)
        inner = reason if isinstance(reason, BaseException) else inner.__cause__ or inner.__context__
    return "no answer in time" if isinstance(error, requests.Timeout) else " ".join(str(error).split())
