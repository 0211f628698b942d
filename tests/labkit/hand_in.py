"""A hand-in of phase 00 of which one file is under test; the others are the reference's."""

from __future__ import annotations

from pathlib import Path

from labkit.course.manifest import Phase


def contents(phase: Phase, text: str | bytes) -> dict[str, bytes]:
    """What a sandbox gets: each module's file, the phase's first with this text."""
    data = text.encode() if isinstance(text, str) else text
    files = {module: phase.reference_file(module).read_bytes() for module in phase.modules}
    return files | {phase.modules[0]: data}


def beside(phase: Phase, file: Path) -> dict[str, Path]:
    """What a grader gets: this file as the phase's first module, and the reference's others."""
    files = {module: phase.reference_file(module) for module in phase.modules}
    return files | {phase.modules[0]: file}
