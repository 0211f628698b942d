"""What the course remembers about a learner: one small JSON file, `.labkit/state.json`, that git
ignores.

{"hints": {"03.2": 2}, "phases": {"03-scheduler": {"passed": ["03.1"], "judged": {"03.1": "a1b…"},
"failed": {"03.2": {"test": "test_03_2_budget", "title": "…", "lines": ["…"]}},
"public": [6, 7], "notebook": [0, 5], "when": "…"}},
 "test_hints": {"03.2": {"seen": ["test_03_2_budget"]}},
 "predictions": {"P03.1": {"guess": 7, "actual": 9}}}
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from labkit.course import source
from labkit.course.files import blob_id, read_python, write_text
from labkit.course.manifest import Exercise, Phase

ROWS: dict[str, type] = {"hints": int}
"""What a row of a table is, where it is no table itself."""


class State:
    """Reads the file when made; each change writes it. A damaged part counts as not
    there, and is kept beside it when the file is written anew.

    Attributes:
        refused: why the system does not let the file be read; None if it does, or there is none.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / ".labkit" / "state.json"
        self.refused: OSError | None = None
        self._damaged = False
        data: Any = {}
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            self.refused = error
        except (ValueError, RecursionError):
            self._damaged = True
        tables = data.items() if isinstance(data, dict) else ()
        self.data: dict[str, dict[str, Any]] = {
            table: {key: row for key, row in rows.items() if isinstance(row, ROWS.get(table, dict))}
            for table, rows in tables
            if isinstance(rows, dict)
        }

    def get(self, table: str, key: str, default: Any = None) -> Any:
        return self.data.get(table, {}).get(key, default)

    def put(self, table: str, key: str, value: Any) -> None:
        """Remember something.

        Raises:
            OSError: the file cannot be written, or could not be read, so that what it holds would
                be lost.
        """
        if self.refused:
            raise self.refused
        if self._damaged:
            kept = self.path.with_suffix(".damaged")
            os.replace(self.path, kept)
            shown = "/".join(kept.parts[-2:])
            print(f"note: {self.path.name} was damaged, so progress begins anew; it is in {shown}")
            self._damaged = False
        self.data.setdefault(table, {})[key] = value
        write_text(self.path, json.dumps(self.data, indent=1, sort_keys=True) + "\n")

    def passed(self, slug: str) -> set[str]:
        """Tasks of a phase whose tests were all green in the last run."""
        return set((self.get("phases", slug) or {}).get("passed", []))

    def standing(self, phase: Phase) -> set[str]:
        """Those of them whose functions are still what was judged: a reset, or an edit since, takes
        a task out until it is judged again."""
        judged = (self.get("phases", phase.slug) or {}).get("judged", {})
        return {
            task.id
            for task in phase.exercises
            if task.id in self.passed(phase.slug)
            and judged.get(task.id) in (None, fingerprint(phase, task))
        }

    def edited(self, phase: Phase) -> list[str]:
        """The tasks that had passed, and whose functions are others now, or cannot be read."""
        standing = self.standing(phase)
        had = self.passed(phase.slug)
        return [task.id for task in phase.exercises if task.id in had - standing]

    def is_graded(self, phase: Phase) -> bool:
        """Whether the functions are those that `grade` has judged last."""
        judged = (self.get("grades", phase.slug) or {}).get("judged", {})
        return all(judged.get(t.id) in (None, fingerprint(phase, t)) for t in phase.exercises)

    def verdicts(self, phase: Phase) -> dict[str, str]:
        """Task -> "passed" or "failed", for those whose functions are what was judged last."""
        judged = (self.get("phases", phase.slug) or {}).get("judged", {})
        passed = self.passed(phase.slug)
        return {
            task.id: "passed" if task.id in passed else "failed"
            for task in phase.exercises
            if task.id in judged and judged[task.id] == fingerprint(phase, task)
        }


def fingerprint(phase: Phase, exercise: Exercise) -> str:
    """A name for the text of a task's functions in the lab file; "" where it cannot be read."""
    try:
        text = read_python(phase.lab_file(exercise.module))
        functions = [source.find(text, name) for name in exercise.functions]
    except (OSError, SyntaxError, source.SourceError):
        return ""
    return blob_id("\n".join(source.function_text(text, each) for each in functions))
