"""Says what runs a lab file that was given to Python itself, in place of a traceback.

Set-up puts a copy of this file into `.venv`, where it runs whenever that Python starts: a skeleton
stays free of it, and so does the engine. It imports what a start has loaded anyway.
"""

import os
import sys


def about(script: str) -> str:
    """What to say of `python script`; "" if it is no file of a lab, or labkit runs it."""
    folder, name = os.path.split(os.path.abspath(script))
    labs, phase = os.path.split(folder)
    root, number = os.path.dirname(labs), phase.partition("-")[0]
    is_lab = os.path.basename(labs) == "labs" and number.isdigit() and name.endswith(".py")
    if not is_lab or "LABKIT_OVERLAY" in os.environ:
        return ""
    if not os.path.exists(os.path.join(root, "labkit", "__main__.py")):
        return ""
    return (
        f"labs/{phase}/{name} is a part of the engine: run alone, it does nothing.\n"
        f"  make lab-{number}   judges it\n"
        f"  make run-{number}   runs the engine with it\n"
        f"To run this file all the same, in {root}:\n"
        f"  python -m labkit run --labs {number} -- labs/{phase}/{name}"
    )


def install(packages: str) -> None:
    """Put the copy into a folder of packages."""
    with open(__file__, encoding="utf-8") as file:
        text = file.read()
    with open(os.path.join(packages, "labkit_by_hand.py"), "w", encoding="utf-8") as file:
        file.write(text)
    with open(os.path.join(packages, "labkit_by_hand.pth"), "w", encoding="utf-8") as file:
        file.write("import labkit_by_hand\n")


if __name__ == "labkit_by_hand" and sys.argv and (said := about(sys.argv[0])):
    print(said, file=sys.stderr, flush=True)
    os._exit(2)  # an exception here would be a fault of Python's start
