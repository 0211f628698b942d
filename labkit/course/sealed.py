"""Keeps what must run in the tab, and is not to be read there by accident, out of sight.

Phase 03 runs on the blocks of phase 02, and a failure is explained by what the reference does: so
the reference's modules go along in the bundle. They lie in one file in which no search finds a line
of a solution. That is no secret: the engine is public, as `student-dist` leaves it, too.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping

NAME = "engine.sealed"
"""In the bundle."""
KEY = b"mini_vllm: write it yourself first"


def seal(files: Mapping[str, bytes]) -> bytes:
    """Some files, by path, as one."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return _turned(buffer.getvalue())


def unseal(data: bytes) -> dict[str, bytes]:
    """The files of :func:`seal`."""
    with zipfile.ZipFile(io.BytesIO(_turned(data))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _turned(data: bytes) -> bytes:
    """Each bit turned where that of a fixed stream is set: twice gives the same again."""
    stream = hashlib.shake_256(KEY).digest(len(data))
    both = int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")
    return both.to_bytes(len(data), "big")
