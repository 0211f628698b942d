"""`python -m labkit.inside.answers ASKED TOLD`: answer one request of a worker, from a file into
another, where there are no processes and no pipes: inside a browser's tab.

What is told is what `labkit.inside.worker_child` writes: items, then an end or an error.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from labkit.inside import steps


def main(asked: str, told: str) -> None:
    """Run the scenario that a file names, and write each of its answers as a line of JSON."""
    request = json.loads(Path(asked).read_text(encoding="utf-8"))
    with open(told, "w", encoding="utf-8") as answers:
        kind, text = steps.begin(request["scenario"], request["args"])
        while kind in ("item", "begun"):
            if kind == "item":
                answers.write(f'{{"item": {text}}}\n')
            kind, text = steps.advance()
        answers.write(f'{{"{kind}": {text}}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
