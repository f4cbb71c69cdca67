"""Downloading a file whose content is known: mirrors, retries with backoff, HTTP ranges, checksums.

pooch was considered: it neither resumes, nor tries a second mirror, nor notices a server that trickles.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import requests
import urllib3
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential, wait_random

from relay.base.errors import UserError
from relay.datasets.files import check_file, folder_of
from relay.datasets.progress import progress
from relay.datasets.sources import KnownFile

_CHUNK_BYTES = 1 << 18
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


class _WorthRetrying(Exception):
    """The same server may do better in a moment."""


class _Useless(Exception):
    """This server will not give the file: the next one is asked."""


def download(
    known: KnownFile, mirrors: Sequence[str], directory: Path, patience: Patience | None = None
) -> tuple[Path, str]:
    """The verified file in `directory`, and the address it came from.

    If none gives it, raises UserError, one line with what each mirror did, and leaves nothing behind.
    """
    patience = patience or Patience()
    target, part = directory / known.name, directory / f"{known.name}.part"
    failures = []
    try:
        for mirror in mirrors:
            url = f"{mirror.rstrip('/')}/{known.name}"
            part.unlink(missing_ok=True)  # what another server sent may not be the same file
            try:
                if mirror.startswith("file://"):
                    _copy(folder_of(mirror) / known.name, known, part)
                else:
                    _OneServer(url, known, part, patience).run()
            except (_WorthRetrying, _Useless) as error:
                log.warning("%s: %s", url, error)
                failures.append(f"{url}: {error}")
                continue
            part.replace(target)
            return target, url
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)
    remedy = "give a copy as dataset_root, or another server as dataset_mirror"
    raise UserError(f"{known.name}: could not be downloaded: {'; '.join(failures)}; {remedy}")


def _copy(file: Path, known: KnownFile, part: Path) -> None:
    """From a folder that serves as a mirror, with the same checks. Raises _Useless."""
    try:
        shutil.copyfile(file, part)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise _Useless(str(error.strerror)) from error
    try:
        check_file(part, known)
    except UserError as error:
        raise _Useless(f"wrong content: {str(error).removeprefix(f'{part}: ')}") from error


class _OneServer:
    """The attempts at one address; what is received so far lies in `part`."""

    def __init__(self, url: str, known: KnownFile, part: Path, patience: Patience) -> None:
        self.url, self.known, self.part, self.patience = url, known, part, patience
        self.session = requests.Session()
        self.show: Callable[[int], None] = lambda received_bytes: None
        self.most_bytes = self.failures = 0

    def run(self) -> None:
        """Until the file is whole and verified. Raises _WorthRetrying or _Useless with the last reason."""
        first_wait_seconds = self.patience.first_wait_seconds
        retrying = Retrying(
            stop=self._give_up,
            wait=wait_exponential(multiplier=first_wait_seconds, max=self.patience.longest_wait_seconds)
            + wait_random(0, first_wait_seconds),
            retry=retry_if_exception_type(_WorthRetrying),
            before_sleep=self._announce,
            reraise=True,
        )
        with self.session, progress(self.known.name, self.known.size_bytes) as self.show:
            retrying(self._attempt)

    def _give_up(self, state: RetryCallState) -> bool:
        """Counts attempts in a row without progress: a bad line may break a long download often."""
        held_bytes = self._held_bytes()
        if held_bytes > self.most_bytes + self.patience.progress_bytes:
            self.failures = 0
        self.most_bytes = max(self.most_bytes, held_bytes)
        self.failures += 1
        return self.failures >= self.patience.attempts

    def _announce(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        wait_seconds = state.next_action.sleep if state.next_action else 0.0
        log.warning("%s: %s; trying again in %.0f s", self.url, error, wait_seconds)

    def _attempt(self) -> None:
        """Requests what is missing, or all of it where the server cannot resume; then verifies."""
        offset_bytes = self._held_bytes()
        if offset_bytes < self.known.size_bytes:
            try:
                self._request(offset_bytes)
            except (requests.exceptions.SSLError, requests.exceptions.InvalidURL) as error:
                raise _Useless(_reason(error)) from error
            except (requests.RequestException, urllib3.exceptions.HTTPError) as error:
                raise _WorthRetrying(_reason(error)) from error
        try:
            check_file(self.part, self.known)
        except UserError as error:
            self.part.unlink(missing_ok=True)
            # A file pieced together may have changed between the pieces: once more, from the start.
            kind = _WorthRetrying if offset_bytes else _Useless
            raise kind(f"wrong content: {str(error).removeprefix(f'{self.part}: ')}") from error

    def _request(self, offset_bytes: int) -> None:
        # "identity": the checksum is of the bytes as they lie on the server, not decoded on the way.
        headers = {"Accept-Encoding": "identity"}
        if offset_bytes:
            headers["Range"] = f"bytes={offset_bytes}-"
        timeout = (self.patience.connect_seconds, self.patience.silence_seconds)
        with self.session.get(self.url, headers=headers, stream=True, timeout=timeout) as response:
            self._receive(response, self._accept(response, offset_bytes))

    def _accept(self, response: requests.Response, offset_bytes: int) -> int:
        """The position at which the body of this response begins. Raises if it is no part of the file."""
        status = f"{response.status_code} {response.reason}"
        if response.status_code == 416:
            self.part.unlink(missing_ok=True)
        if response.status_code in (*_BUSY, 416):
            raise _WorthRetrying(status)
        if response.status_code not in (200, 206):
            raise _Useless(status)
        partial = response.status_code == 206
        content_range = response.headers.get("Content-Range", "")
        if partial and not content_range.startswith(f"bytes {offset_bytes}-"):
            self.part.unlink(missing_ok=True)
            raise _WorthRetrying(f"sent the range {content_range!r}, asked for bytes {offset_bytes}-")
        begin_bytes = offset_bytes if partial else 0
        length = response.headers.get("Content-Length", "")
        if length.isdigit() and begin_bytes + int(length) != self.known.size_bytes:
            found_bytes = begin_bytes + int(length)
            raise _Useless(f"wrong content: {found_bytes:,} bytes, expected {self.known.size_bytes:,}")
        return begin_bytes

    def _receive(self, response: requests.Response, begin_bytes: int) -> None:
        received_bytes, expected_bytes = begin_bytes, self.known.size_bytes
        pace = _Pace(self.patience, begin_bytes)
        with self.part.open("r+b" if begin_bytes else "wb") as stream:
            stream.seek(begin_bytes)
            while chunk := self._next_chunk(response):
                stream.write(chunk)
                received_bytes += len(chunk)
                if received_bytes > expected_bytes:
                    raise _Useless(f"wrong content: more than the {expected_bytes:,} bytes expected")
                self.show(received_bytes)
                pace.check(received_bytes)
        if received_bytes < expected_bytes:
            raise _WorthRetrying(f"connection closed after {received_bytes:,} of {expected_bytes:,} bytes")

    @staticmethod
    def _next_chunk(response: requests.Response) -> bytes:
        """What has come, at least a byte; empty at the end and where the connection broke."""
        # read1, because a full read would wait for ever on a server that trickles.
        try:
            return response.raw.read1(_CHUNK_BYTES, decode_content=False)
        except urllib3.exceptions.ProtocolError:
            return b""

    def _held_bytes(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


class _Pace:
    """Notices a server that sends just enough never to be silent."""

    def __init__(self, patience: Patience, received_bytes: int) -> None:
        self.patience = patience
        self.start, self.start_bytes = time.monotonic(), received_bytes

    def check(self, received_bytes: int) -> None:
        """Raises _WorthRetrying if the last window was slower than is worth waiting for."""
        elapsed_seconds = time.monotonic() - self.start
        if elapsed_seconds < self.patience.slow_window_seconds:
            return
        rate = (received_bytes - self.start_bytes) / elapsed_seconds
        if rate < self.patience.slowest_bytes_per_second:
            raise _WorthRetrying(f"too slow: {rate:.0f} bytes/s over {elapsed_seconds:.0f} s")
        self.start, self.start_bytes = time.monotonic(), received_bytes


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
