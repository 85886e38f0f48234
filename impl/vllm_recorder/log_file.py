"""The file of a log: never overwritten, written in one piece a call, bounded in size."""

from __future__ import annotations

import os
from pathlib import Path

RESERVE_BYTES = 4096
"""What is kept of the bound for the last line."""


class LogFile:
    """A new file of at most ``max_bytes``. ``path`` is where it is.

    A name may hold ``{pid}``. If there is a file of that name already, a number is added.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        """Create the file. Raises OSError if that cannot be done."""
        wanted = Path(name.replace("{pid}", str(os.getpid())))
        self.path = wanted
        self.max_bytes = max_bytes
        self._left = max_bytes - RESERVE_BYTES
        number = 0
        while True:
            try:
                self._file = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
                return
            except FileExistsError:
                number += 1
                self.path = wanted.with_name(f"{wanted.name}.{number}")

    def write(self, text: str) -> bool:
        """Append ``text`` if it fits; return whether it did. Raises OSError."""
        data = text.encode()
        if len(data) > self._left:
            return False
        self._left -= len(data)
        self._write(data)
        return True

    def write_last(self, line: str) -> None:
        """Append the last line, for which room was kept, and close. Raises OSError."""
        self._write(line.encode()[:RESERVE_BYTES])
        self.close()

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
