"""Correct solutions that look nothing like the reference: a suite must accept them.

`tests/corpora/alternatives/NN-slug/NAME/MODULE.py` holds functions, in classes named as in the
module. Each takes the place of the engine's function of that name; other functions of the file are
helpers. So a change of the engine elsewhere needs no change here. A file has all graded functions
of its module; a module without a file is the engine's.

Kernels stand in `tests/corpora/kernel_corpus/honest/NAME/MODULE.py`, whole, since the kernel
checker must accept them too. Such a file takes the engine's place; ours only adds what it lacks.
"""

from __future__ import annotations

import ast
from pathlib import Path

from labkit.course import source
from labkit.course.manifest import ManifestError, Phase

KERNELS = "tests/corpora/kernel_corpus/honest"


def folder(phase: Phase) -> Path:
    return phase.root / "tests" / "corpora" / "alternatives" / phase.slug


def names(phase: Phase) -> list[str]:
    """The solutions of a phase: "a", "b", …"""
    where = folder(phase)
    return sorted(path.name for path in where.iterdir() if path.is_dir()) if where.exists() else []


def build(phase: Phase, name: str) -> dict[str, str]:
    """Module -> its whole text with this solution's functions in it.

    Raises:
        ManifestError: a graded function is missing, or a method that the module does not have.
    """
    return {module: _merged(phase, name, module) for module in phase.modules}


def _merged(phase: Phase, name: str, module: str) -> str:
    file = phase.lab_file(module).name
    path, kernels = folder(phase) / name / file, phase.root / KERNELS / name / file
    shown = path.relative_to(phase.root).as_posix()
    whole = kernels.exists()
    if not whole and not path.exists():
        return phase.reference_file(module).read_text(encoding="utf-8")
    written = "" if whole and not path.exists() else path.read_text(encoding="utf-8")
    text = (kernels if whole else phase.reference_file(module)).read_text(encoding="utf-8")
    mine, known = source.functions(written, shown), source.functions(text, module)
    lacking = sorted(set(phase.holes(module)) - set(mine) - (set(known) if whole else set()))
    if lacking:
        raise ManifestError(f"{shown}: {', '.join(lacking)} missing; a solution has them all")
    helpers = []
    for function, found in mine.items():
        body = source.function_text(written, found)
        if function in known:
            text = source.replace_function(text, function, body, module)
        elif "." in function:
            raise ManifestError(f"{shown}: {module} has no {function}; nest it, or make it global")
        else:
            helpers.append(body)
    merged = "\n\n\n".join([text.rstrip(), *helpers]) + "\n"
    ast.parse(merged, shown)
    return merged
