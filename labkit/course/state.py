"""What the course remembers about a learner: one small JSON file, `.labkit/state.json`, that git
ignores.

{"hints": {"03.2": 2}, "phases": {"03-scheduler": {"passed": ["03.1"], "public": [6, 7], "notebook":
[0, 5], "when": "…"}},
 "predictions": {"P03.1": {"guess": 7, "actual": 9}}}
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labkit.course.files import write_text


class State:
    """Reads the file when made; each change writes it."""

    def __init__(self, root: Path) -> None:
        self.path = root / ".labkit" / "state.json"
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            data = {}
        self.data: dict[str, dict[str, Any]] = data if isinstance(data, dict) else {}

    def get(self, table: str, key: str, default: Any = None) -> Any:
        return self.data.get(table, {}).get(key, default)

    def put(self, table: str, key: str, value: Any) -> None:
        self.data.setdefault(table, {})[key] = value
        write_text(self.path, json.dumps(self.data, indent=1, sort_keys=True) + "\n")

    def passed(self, slug: str) -> set[str]:
        """Tasks of a phase whose tests were all green in the last run."""
        return set((self.get("phases", slug) or {}).get("passed", []))
