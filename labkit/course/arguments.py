"""Arguments that several commands share, for Typer."""

from __future__ import annotations

import typer

PHASE = typer.Argument(help="a phase: 3, 03 or 03-scheduler")
TASK = typer.Argument("", help="a task: 2 or 03.2; default: the first that is not green")
