"""What the changelog says of a release, for the page of the release.

    python .github/release_notes.py v0.2.0

Standard library only: the release workflow runs this before anything is installed.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, root: Path = ROOT) -> str:
    """The section of ``CHANGELOG.md`` for a tag such as ``v0.2.0``, without its heading.

    Raises:
        SystemExit: if the package has another version, or the changelog no section with a date.
    """
    package = (root / "mini_vllm" / "__init__.py").read_text(encoding="utf-8")
    [version] = re.findall(r'(?m)^__version__ = "(.+)"$', package)
    if tag != f"v{version}":
        raise SystemExit(
            f"the tag is {tag}, but mini_vllm/__init__.py has __version__ = {version!r}; change it "
            f"and tag the commit that does, or tag v{version}"
        )
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n"
    section = re.search(rf"(?ms){heading}(.+?)(?=^## |\Z)", changes)
    if section is None:
        raise SystemExit(
            f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'; write it, or give it a date"
        )
    return section[1].strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: release_notes.py TAG, such as v0.2.0")
    print(notes(sys.argv[1]))
