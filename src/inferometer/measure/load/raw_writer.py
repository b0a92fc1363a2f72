"""How do frames get to the disk without holding up the loop?

A thread writes what has gathered, four times a second.
"""

import os
import threading
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.records import durability
from inferometer.records.raw_log import MAGIC, Frame, encode_frame

_EVERY_S: Final = 0.25
_MOST_WAITING_BYTES: Final = 64 * 1024 * 1024
"""Beyond it the loop waits for the disk, and its lag shows."""


class RawLogWriter:
    """Appends frames to one raw log.

    What is older than a quarter of a second survives ``kill -9``.
    """

    def __init__(self, path: Path) -> None:
        durability.make_folder(path.parent)
        try:
            self._descriptor = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise durability.cannot_write(path, error) from error
        self._path = path
        self._waiting: list[bytes] = [MAGIC]
        self._n_waiting_bytes = 0
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._error: OSError | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="raw log", daemon=True)
        self._thread.start()

    def append(self, frame: Frame) -> None:
        """Keep a frame.

        Raises
        ------
        RecordError
            The disk does not take what came before.
        """
        if self._error is not None:
            raise self._failure(self._error)
        data = encode_frame(frame)
        with self._lock:
            self._waiting.append(data)
            self._n_waiting_bytes += len(data)
        if self._n_waiting_bytes > _MOST_WAITING_BYTES:
            self._write()

    def close(self) -> None:
        """Write what is left, onto the disk itself.

        Raises
        ------
        RecordError
            It could not be written.
        """
        self._is_closing.set()
        self._thread.join()
        self._write()
        try:
            if self._error is None:
                os.fsync(self._descriptor)
        except OSError as error:
            self._error = error
        os.close(self._descriptor)
        if self._error is not None:
            raise self._failure(self._error)

    def _write_often(self) -> None:
        while not self._is_closing.wait(_EVERY_S):
            self._write()

    def _write(self) -> None:
        with self._writing:
            with self._lock:
                frames, self._waiting = self._waiting, []
                self._n_waiting_bytes = 0
            view = memoryview(b"".join(frames))
            try:
                while view and self._error is None:
                    view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                self._error = error

    def _failure(self, error: OSError) -> RecordError:
        return durability.cannot_write(self._path, error)
