"""What other systems read, made from the one result file: Gradescope, GitHub Classroom, JUnit, CSV.

    python -m labkit export gradescope result.json --out /autograder/results/results.json
    python -m labkit export classroom result.json >> "$GITHUB_OUTPUT"
    python -m labkit export junit result.json --out result.xml
    python -m labkit export csv results/ --out class.csv

Each is a rendering and loses something; the result file is the source of truth. What a student can
read in one of them is a task's title, its status, the kind of failure and the authored hint, never
a hidden test's input.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from labkit.course.files import printable, write_text
from labkit.course.remedies import remedy
from labkit.grading.result import GradeResult, GroupRecord, ResultError, load

VISIBILITIES = ("visible", "after_due_date", "after_published", "hidden")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so is a formula to a spreadsheet; a student chooses the folder's name."""
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def explain(result: GradeResult) -> str:
    """The lines above the tasks: what was judged, how, and what to do if it could not be."""
    if result.status == "partial":
        return (
            "The grader has started and not ended. If you read this later, it was stopped:"
            " submit again, and tell your instructor if it happens twice."
        )
    if result.status == "error":
        return f"The grader could not judge this; no fault of yours. {result.problem}".strip()
    lines = [f"{result.title}: {result.earned:g} of {result.points:g} points."]
    if result.problem:
        ran = any(group.total for group in result.groups)
        lines.append(f"{'Not all could' if ran else 'Nothing could'} run: {result.problem}")
    lines.append(f"isolation: {result.isolation} · suite {result.suite[:12]}")
    if result.seed.value is not None:
        lines.append(f"seed {result.seed.value}, promised as {result.seed.commitment[:16]}…")
    return "\n".join(lines)


def comment(group: GroupRecord) -> str:
    """One task in a sentence or two: how many tests hold, what went wrong, the authored hint."""
    text = f"{group.passed} of {group.total} hidden tests passed."
    if not group.total:  # as where a file is no Python
        text = "No hidden test ran:"
    if group.status != "passed":
        text += f" {group.kind or group.status}." + (f" {group.hint}" if group.hint else "")
    return text


# ---------------------------------------------------------------- Gradescope
def gradescope(result: GradeResult, visibility: str = "visible") -> dict[str, Any]:
    """The document for `/autograder/results/results.json`.

    Args:
        visibility: of the tasks, one of VISIBILITIES. What the grader prints stays hidden.

    Raises:
        ResultError: another word for the visibility.
    """
    if visibility not in VISIBILITIES:
        known = ", ".join(VISIBILITIES)
        raise ResultError(f"visibility is {visibility!r}; it must be one of {known}")
    document: dict[str, Any] = {
        "output": explain(result),
        "output_format": "text",  # the default renders HTML, and a problem may name `<module>`
        "execution_time": round(result.seconds),
        "visibility": visibility,
        "stdout_visibility": "hidden",
        "tests": [_gradescope_test(group, visibility) for group in result.groups],
        "extra_data": {
            "schema": result.schema,
            "phase": result.phase,
            "status": result.status,
            "suite": result.suite,
            "submission": result.submission,
            "seed_commitment": result.seed.commitment,
            "isolation": result.isolation,
            "flags": [[flag.kind, flag.where] for flag in result.flags],
        },
    }
    if not result.groups:
        document["score"] = 0  # required where no test carries a score
    return document


def _gradescope_test(group: GroupRecord, visibility: str) -> dict[str, Any]:
    return {
        "number": group.id,
        "name": f"{group.id} {group.title}",
        "score": group.earned,
        "max_score": group.points,
        "status": "passed" if group.status == "passed" else "failed",
        "output": comment(group),
        "visibility": visibility,
    }


# ---------------------------------------------------------------- GitHub Classroom
def classroom(result: GradeResult, group: GroupRecord | None = None) -> dict[str, Any]:
    """The document that Classroom's reporter reads: of the whole result, or of one task.

    Its log shows the name of a test, and the message only of one that could not run; so the name of
    a failed one says what there is to say. `line_no` 0 stands for "no line".
    """
    groups = result.groups if group is None else [group]
    passed = all(item.status == "passed" for item in groups) and result.status == "graded"
    return {
        "status": "error" if result.status != "graded" else "pass" if passed else "fail",
        "max_score": sum(item.points for item in groups),
        "tests": [_classroom_test(item) for item in groups],
    }


def _classroom_test(group: GroupRecord) -> dict[str, Any]:
    name, passed = f"{group.id} {group.title}", group.status == "passed"
    return {
        "name": name if passed else f"{name}: {comment(group)}",
        "status": "pass" if passed else "fail",
        "score": group.earned,
        "message": comment(group),
        "line_no": 0,
    }


def classroom_outputs(result: GradeResult) -> str:
    """Lines for `$GITHUB_OUTPUT`: `result`, and `task1`, `task2`, … with `runners` that names them.

    The reporter sends the sum of the scores to Classroom, but prints passed / number x maximum. The
    two agree where each task is a runner of its own, so the workflow uses these.
    """
    outputs = {"result": classroom(result)}
    outputs |= {f"task{i}": classroom(result, g) for i, g in enumerate(result.groups, 1)}
    lines = [f"{name}={_base64(document)}" for name, document in outputs.items()]
    runners = [name for name in outputs if name != "result"] or ["result"]
    return "\n".join([*lines, f"runners={','.join(runners)}"]) + "\n"


def _base64(document: dict[str, Any]) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


# ---------------------------------------------------------------- JUnit
def junit(result: GradeResult) -> str:
    """JUnit's XML: a suite for each task, a case for each hidden test."""
    root = ElementTree.Element("testsuites", name=f"{result.phase} {result.title}")
    for group in result.groups:
        tests = [test for test in result.tests if test.group == group.id]
        counts = {status: sum(test.status == status for test in tests) for status in OUTCOME_TAGS}
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=f"{group.id} {group.title}",
            tests=str(len(tests)),
            failures=str(counts["failed"]),
            errors=str(counts["not run"]),
            time=f"{group.seconds:.3f}",
            timestamp=result.started,
        )
        _junit_properties(suite, result, group)
        for test in tests:
            case = ElementTree.SubElement(
                suite, "testcase", classname=group.id, name=test.title, time=f"{test.seconds:.3f}"
            )
            if test.status != "passed":
                tag, kind = OUTCOME_TAGS[test.status], test.kind or test.status
                ElementTree.SubElement(case, tag, type=kind, message=group.hint or kind)
    ElementTree.indent(root)
    text = NO_XML.sub("\ufffd", ElementTree.tostring(root, "unicode"))
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not know in any form."""
OUTCOME_TAGS = {"failed": "failure", "not run": "error"}
"""A test that did not run is no skip: a skip is green in most viewers."""


def _junit_properties(suite: ElementTree.Element, result: GradeResult, group: GroupRecord) -> None:
    facts = {
        "schema": result.schema,
        "status": result.status,
        "problem": result.problem,
        "points": f"{group.earned:g}/{group.points:g}",
        "isolation": result.isolation,
        "suite": result.suite,
        "seed commitment": result.seed.commitment,
        "seed": "" if result.seed.value is None else result.seed.value,
        **{f"sha256 of {name}": digest for name, digest in result.submission.items()},
    }
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in facts.items():
        ElementTree.SubElement(properties, "property", name=name, value=str(value))


# ---------------------------------------------------------------- a class as a table
def table(results: Mapping[str, GradeResult]) -> str:
    """CSV with one row a submission: points, a column for each task, and what a human should see.

    Args:
        results: name of the submission -> its result.
    """
    found = {group.id for result in results.values() for group in result.groups}
    tasks = sorted(found, key=lambda task: (len(task), task))  # 03.2 before 03.10
    head = ["name", "phase", "status", "passed", "earned", "points", *tasks]
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow([*head, "problem", "kinds", "flags", "isolation", "seed", "started", "seconds"])
    for name, result in sorted(results.items()):
        earned = {group.id: group.earned for group in result.groups}
        kinds = sorted({group.kind for group in result.groups if group.kind})
        row = [name, result.phase, result.status, "yes" if result.passed else "no"]
        row += [f"{result.earned:g}", f"{result.points:g}"]
        row += [f"{earned[task]:g}" if task in earned else "" for task in tasks]
        row += [result.problem, "; ".join(kinds)]
        row += ["; ".join(f"{flag.kind}: {flag.where}" for flag in result.flags), result.isolation]
        row += [str(result.seed.value or ""), result.started, f"{result.seconds:.1f}"]
        rows.writerow([harmless(cell) for cell in row])
    return out.getvalue()


def harmless(cell: str) -> str:
    """A quote before what a spreadsheet would run, no half of a character, and none that makes a
    program take the table for no text."""
    cell = CONTROL.sub(lambda found: repr(found[0])[1:-1], printable(cell))
    return f"'{cell}" if cell.startswith(FORMULA) else cell


# ---------------------------------------------------------------- the command
FORMATS = ("gradescope", "classroom", "junit", "csv")


def _readable(files: list[Path]) -> Iterator[tuple[str, GradeResult]]:
    """Each result of a folder by its name; one that is damaged is left out, and named on stderr."""
    for file in files:
        try:
            yield printable(file.stem), load(file)
        except (ResultError, OSError) as error:
            said = remedy(error) if isinstance(error, OSError) else error
            print(f"left out: {said}", file=sys.stderr)


def render(form: str, path: Path, visibility: str = "visible") -> str:
    """One export as text. `csv` reads a folder of result files, the others read one file.

    Raises:
        ResultError: there is no such format, or a result file is wrong.
        OSError: a file cannot be read.
    """
    if form not in FORMATS:
        raise ResultError(f"format is {form!r}; it must be one of {', '.join(FORMATS)}")
    if form == "csv" and path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise ResultError(f"{path}: holds no *.json; `grade-class` writes one a submission")
        return table(dict(_readable(files)))
    if path.is_dir():
        one = next(iter(sorted(path.glob("*.json"))), path / "NAME.json")
        raise ResultError(f"{path}: is a folder; {form} takes one result of it, such as {one}")
    result = load(path)
    if form == "csv":
        return table({printable(path.stem): result})
    if form == "gradescope":
        return json.dumps(gradescope(result, visibility), indent=1) + "\n"
    return classroom_outputs(result) if form == "classroom" else junit(result)


def main(
    form: str = typer.Argument(metavar="FORMAT", help=", ".join(FORMATS)),
    path: Path = typer.Argument(help="a result file; for csv a folder of them"),
    out: Path = typer.Option(None, help="write here; default: print"),
    visibility: str = typer.Option("visible", help=f"Gradescope: {', '.join(VISIBILITIES)}"),
) -> None:
    """Render results for Gradescope, GitHub Classroom, JUnit, or as a table."""
    try:
        text = render(form, path, visibility)
    except (ResultError, OSError) as error:
        print(remedy(error) if isinstance(error, OSError) else error, file=sys.stderr)
        raise typer.Exit(2) from None
    if out:
        write_text(out, text)
    else:
        print(text, end="")
