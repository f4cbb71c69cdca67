"""Downloading a file whose content is known: mirrors, retries with growing waits, HTTP ranges, a checksum.

pooch was considered: it neither resumes, nor tries a second mirror, nor notices a server that trickles.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3

from relay.base.errors import UserError
from relay.datasets.files import KnownFile, check_file, folder_of

_CHUNK_BYTES = 1 << 18
_LINE_SECONDS = 10.0  # between two lines on how far a download is
_BUSY = (408, 425, 429, 500, 502, 503, 504)
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a server is waited for; `attempts` are those in a row bringing ≤ `progress_bytes`."""

    attempts: int = 4
    first_wait_seconds: float = 1.0
    longest_wait_seconds: float = 30.0
    connect_seconds: float = 10.0
    silence_seconds: float = 30.0
    slow_window_seconds: float = 30.0
    slowest_bytes_per_second: float = 1000.0
    progress_bytes: int = 1 << 16


class _Failed(Exception):
    """A server does not give the file: the next one is asked."""


class _WorthRetrying(_Failed):
    """The same server may do better in a moment."""


def download(file: KnownFile, mirrors: Sequence[str], directory: Path, patience: Patience | None = None) -> Path:
    """The verified file in `directory`.

    If none gives it, raises UserError, one line with what each mirror did, and leaves nothing behind.
    """
    target, part = directory / file.name, directory / f"{file.name}.part"
    failures = []
    try:
        for mirror in mirrors:
            url = f"{mirror.rstrip('/')}/{file.name}"
            part.unlink(missing_ok=True)  # what another server sent may not be the same file
            try:
                if mirror.startswith("file://"):
                    _copy(folder_of(mirror) / file.name, file, part)
                else:
                    _OneServer(url, file, part, patience or Patience()).run()
            except _Failed as error:
                log.warning("%s: %s", url, error)
                failures.append(f"{url}: {error}")
            else:
                return part.replace(target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error
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


def _check(part: Path, file: KnownFile, failed: type[_Failed]) -> None:
    """Raises `failed` where the file is not the known one, and removes it."""
    try:
        check_file(part, file)
    except UserError as error:
        part.unlink(missing_ok=True)
        raise failed(f"wrong content: {str(error).removeprefix(f'{part}: ')}") from error


@dataclass
class _OneServer:
    """The attempts at one address; what is received so far lies in `part`."""

    url: str
    file: KnownFile
    part: Path
    patience: Patience

    def run(self) -> None:
        """Until the file is whole and verified. Raises _Failed with the last reason.

        Attempts in a row without progress are counted: a bad line may break a long download often.
        """
        most_bytes = failures = 0
        wait_seconds = self.patience.first_wait_seconds
        show = _progress(self.file)
        with requests.Session() as session:
            while True:
                try:
                    return self._attempt(session, show)
                except _WorthRetrying as error:
                    has_moved = self._held_bytes() > most_bytes + self.patience.progress_bytes
                    failures = 1 if has_moved else failures + 1
                    if failures >= self.patience.attempts:
                        raise
                    most_bytes = max(most_bytes, self._held_bytes())
                    pause_seconds = wait_seconds + random.uniform(0, self.patience.first_wait_seconds)
                    log.warning("%s: %s; trying again in %.0f s", self.url, error, pause_seconds)
                    time.sleep(pause_seconds)
                    wait_seconds = min(2 * wait_seconds, self.patience.longest_wait_seconds)

    def _attempt(self, session: requests.Session, show: Callable[[int], None]) -> None:
        """Requests what is missing, or all of it where the server cannot resume; then verifies."""
        offset_bytes = self._held_bytes()
        # "identity": the checksum is of the bytes as they lie on the server, not decoded on the way.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset_bytes}-"} if offset_bytes else {})
        timeout = (self.patience.connect_seconds, self.patience.silence_seconds)
        try:
            if offset_bytes < self.file.size_bytes:
                with session.get(self.url, headers=headers, stream=True, timeout=timeout) as response:
                    self._receive(response, self._accept(response, offset_bytes), show)
        except (requests.exceptions.SSLError, requests.exceptions.InvalidURL) as error:
            raise _Failed(_reason(error)) from error
        except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
            raise _WorthRetrying(_reason(error)) from error
        # A file pieced together may have changed between the pieces: once more, from the start.
        _check(self.part, self.file, _WorthRetrying if offset_bytes else _Failed)

    def _accept(self, response: requests.Response, offset_bytes: int) -> int:
        """The position at which the body of this response begins. Raises if it is no part of the file."""
        status, code = f"{response.status_code} {response.reason}", response.status_code
        if code in _BUSY:
            raise _WorthRetrying(status)
        if code not in (200, 206, 416):
            raise _Failed(status)
        sent = response.headers.get("Content-Range", "")
        wrong = code == 206 and not sent.startswith(f"bytes {offset_bytes}-")
        if wrong or code == 416:
            self.part.unlink(missing_ok=True)
            raise _WorthRetrying(f"sent the range {sent!r}, asked for bytes {offset_bytes}-" if wrong else status)
        begin_bytes = offset_bytes if code == 206 else 0
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and (whole_bytes := begin_bytes + int(length)) != self.file.size_bytes:
            raise _Failed(f"wrong content: {whole_bytes:,} bytes, expected {self.file.size_bytes:,}")
        return begin_bytes

    def _receive(self, response: requests.Response, begin_bytes: int, show: Callable[[int], None]) -> None:
        """Writes the body. Raises if it ends early, is too long, or comes just fast enough never to be silent."""
        received_bytes, expected_bytes = begin_bytes, self.file.size_bytes
        since, since_bytes = time.monotonic(), begin_bytes
        with self.part.open("r+b" if begin_bytes else "wb") as stream:
            stream.seek(begin_bytes)
            while chunk := _next_chunk(response):
                stream.write(chunk)
                received_bytes += len(chunk)
                if received_bytes > expected_bytes:
                    raise _Failed(f"wrong content: more than the {expected_bytes:,} bytes expected")
                show(received_bytes)
                elapsed_seconds = time.monotonic() - since
                if elapsed_seconds >= self.patience.slow_window_seconds:
                    rate = (received_bytes - since_bytes) / elapsed_seconds
                    if rate < self.patience.slowest_bytes_per_second:
                        raise _WorthRetrying(f"too slow: {rate:.0f} bytes/s over {elapsed_seconds:.0f} s")
                    since, since_bytes = time.monotonic(), received_bytes
        if received_bytes < expected_bytes:
            raise _WorthRetrying(f"connection closed after {received_bytes:,} of {expected_bytes:,} bytes")

    def _held_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _progress(file: KnownFile) -> Callable[[int], None]:
    """A function that takes the bytes received so far, as often as one likes, and prints a line now and then."""
    start = last = time.monotonic()

    def show(received_bytes: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _LINE_SECONDS or received_bytes == file.size_bytes:
            last = now
            figures = f"{received_bytes / 1e6:.1f} of {file.size_bytes / 1e6:.1f} MB in {now - start:.0f} s"
            print(f"{file.name}: {figures}", file=sys.stderr, flush=True)

    return show


def _next_chunk(response: requests.Response) -> bytes:
    """What has come, at least a byte; empty at the end and where the connection broke."""
    # read1, because a full read would wait for ever on a server that trickles.
    try:
        return response.raw.read1(_CHUNK_BYTES, decode_content=False)
    except urllib3.exceptions.ProtocolError:
        return b""


def _reason(error: BaseException) -> str:
    """A few plain words for the nest of exceptions that requests and urllib3 raise."""
    seen: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        item = pending.pop(0)
        if isinstance(item, BaseException) and item not in seen:
            seen.append(item)
            pending += [*item.args, getattr(item, "reason", None), item.__cause__, item.__context__]
    # The order matters: urllib3 counts a refused connection among its connection timeouts.
    if any(isinstance(item, urllib3.exceptions.NameResolutionError) for item in seen):
        return "host name not found"
    for item in seen:
        if isinstance(item, OSError) and item.strerror and not isinstance(item, requests.RequestException):
            return item.strerror
    for item in seen:
        if isinstance(item, requests.ConnectTimeout | urllib3.exceptions.ConnectTimeoutError):
            return "no connection in time"
        if isinstance(item, requests.ReadTimeout | urllib3.exceptions.ReadTimeoutError):
            return "no answer in time"
    return " ".join(str(error).split())
