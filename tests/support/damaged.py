"""Files that are damaged so that nobody sees it but who reads them."""

import os
from pathlib import Path


def change_a_byte(path: Path) -> None:
    """In the middle, with the file's times put back."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
