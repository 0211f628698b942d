"""Skeleton modules: the engine's source with the bodies of the holes replaced by a TODO that names
itself."""

from __future__ import annotations

import ast
import re

from labkit.course import source
from labkit.course.files import read_python
from labkit.course.manifest import Exercise, Phase

MARK = "TODO"


def todo_message(phase: Phase, exercise: Exercise, function: str) -> str:
    """What a learner reads who calls a hole that is not written yet."""
    return (
        f"{MARK} {exercise.id}: write {function} in {phase.lab_path(exercise.module)}"
        f" (phase {phase.number}, {exercise.read})"
    )


def is_todo(text: str) -> str | None:
    """The task's number if `text` is the message of a hole: "TODO 03.2: …" -> "03.2"."""
    head, _, rest = text.partition(" ")
    return rest.partition(":")[0] if head == MARK and ":" in rest else None


def todo_in(text: str) -> str:
    """The message of a hole inside of what Triton made of it, or ""; a kernel's hole arrives as
    `InterpreterError("AssertionError('TODO 04.2: write … (phase 04, …)')")`."""
    found = re.search(rf"{MARK} \d\d\.\d+: write [^()]+\(phase [^()]+\)", text)
    return found[0] if found else ""


def is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """`@triton.jit` functions cannot raise: Triton compiles them."""
    names = {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in node.decorator_list}
    return bool(names & {"triton.jit", "jit"})


def kernels(phase: Phase) -> dict[tuple[str, str], Exercise]:
    """(module, function) -> task of the kernels that a learner writes."""
    found = {}
    for module in phase.modules:
        known = source.functions(phase.reference_file(module).read_text(encoding="utf-8"))
        for name, task in phase.holes(module).items():
            if name in known and is_kernel(known[name].node):
                found[module, name] = task
    return found


def hole_body(phase: Phase, exercise: Exercise, function: source.Function) -> str:
    message = todo_message(phase, exercise, function.name)
    first, second = message.split(" (", 1)
    text = f"    {_quoted(first)}\n    {_quoted(' (' + second)}"
    if is_kernel(function.node):
        return f"# {MARK} {exercise.id}\ntl.static_assert(\n    False,\n{text},\n)"
    return f"# {MARK} {exercise.id}\nraise NotImplementedError(\n{text}\n)"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def skeleton(phase: Phase, module: str) -> str:
    """The text of the file that a learner starts from.

    Raises:
        labkit.course.source.SourceError: the manifest names a function that the module does not
        have.
    """
    path = phase.reference_file(module)
    name = path.relative_to(phase.root).as_posix()
    text = path.read_text(encoding="utf-8")
    for function_name, exercise in phase.holes(module).items():
        function = source.find(text, function_name, name)
        text = source.replace_body(text, function_name, hole_body(phase, exercise, function), name)
    return text


def is_hole(function: source.Function) -> bool:
    """True while the function's body is still the generated TODO."""
    return len(function.statements) == 1 and _is_todo_statement(function.statements[0])


def _is_todo_statement(node: ast.stmt) -> bool:
    """A `raise` or a `tl.static_assert` with the message of a hole."""
    if not isinstance(node, ast.Raise | ast.Expr):
        return False
    call = node.exc if isinstance(node, ast.Raise) else node.value
    if not isinstance(call, ast.Call):
        return False
    texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return any(is_todo(text) for text in texts)


def left_todo(phase: Phase, exercise: Exercise) -> str:
    """Where a TODO of this task still stands beside what the learner wrote, as "file.py:41 (name)";
    "" if nowhere."""
    known = source.functions(read_python(phase.lab_file(exercise.module)))
    for name in exercise.functions:
        if name in known and not is_hole(known[name]):
            for node in ast.walk(known[name].node):
                if isinstance(node, ast.stmt) and _is_todo_statement(node):
                    return f"{phase.lab_path(exercise.module)}:{node.lineno} ({name})"
    return ""


def open_holes(phase: Phase) -> dict[str, list[source.Function]]:
    """Task -> its functions that are still TODO in the learner's files.

    Raises:
        SyntaxError: a lab file is not Python.
        FileNotFoundError: a lab file is missing.
    """
    still: dict[str, list[source.Function]] = {}
    for module in phase.modules:
        path = phase.lab_file(module)
        known = source.functions(read_python(path), phase.lab_path(module))
        for name, exercise in phase.holes(module).items():
            if name in known and is_hole(known[name]):
                still.setdefault(exercise.id, []).append(known[name])
    return still
