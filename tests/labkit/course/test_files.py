"""What is recorded stays short, and a diff of it names what has changed."""

from __future__ import annotations

import json

from labkit.course.files import entries_as_json


def test_each_entry_of_each_section_has_a_line_of_its_own() -> None:
    document = {"seed": 20, "rows": ["a"], "none": {}, "faults": {"é": ["x", "y"], "b\n": "z"}}
    text = entries_as_json(document)
    assert json.loads(text) == document
    assert text.splitlines() == [
        "{", ' "seed": 20,', ' "rows": ["a"],', ' "none": {},', ' "faults": {',
        '  "é": ["x", "y"],', '  "b\\n": "z"', " }", "}",
    ]  # fmt: skip
    assert json.loads(entries_as_json({})) == {}
