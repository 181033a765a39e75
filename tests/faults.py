"""A disk that fails: the ``os`` of the store's files, with one call after so many going wrong."""

import errno
import os

FAILING = ("open", "write", "fsync", "replace")


class FaultyOS:
    """Passes everything on to ``os``; the ``at``-th of the calls that can fail raises.

    ``at=None`` counts only. A failing ``write`` of a full disk writes half of the bytes first.
    """

    def __init__(self, at=None, error=errno.ENOSPC):
        self.at, self.error, self.calls = at, error, 0

    def __getattr__(self, name):
        real = getattr(os, name)
        return self._guarded(name, real) if name in FAILING else real

    def _guarded(self, name, real):
        def call(*arguments):
            number, self.calls = self.calls, self.calls + 1
            if self.at is not None and number >= self.at:
                if name == "write":
                    real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return real(*arguments)

        return call
