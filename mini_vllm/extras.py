"""Packages that only a part of the engine needs: they are extras of the distribution.

`pip install mini-vllm-engine` brings what an engine process needs itself. A server, pictures and
the like need more. They import it under :func:`from_extra`, so that a missing package is a sentence
with the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

DISTRIBUTION = "mini-vllm-engine"
"""What `pip` calls the package that Python calls `mini_vllm`."""


class MissingExtraError(ImportError, ValueError):
    """A package of an extra is not installed.

    It is a ValueError too: an option or a request asks for the package, and gets the answer that
    any other gets which cannot be served.
    """


@contextmanager
def from_extra(
    extra: str, purpose: str, instead: str = "", program: bool = False
) -> Iterator[None]:
    """Import packages of an extra in the body of this ``with``.

    Args:
        purpose: what needs them; the message begins with it.
        instead: what can be done without them, if anything; the message ends with it.
        program: the importing module is run by ``python -m``: the message ends the process, with
            exit code 1 and no traceback.

    Raises:
        MissingExtraError: if one of them cannot be imported.
        SystemExit: the same, of a program.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        advice = install_command(extra) + (f", or {instead}" if instead else "")
        message = f"{purpose} needs more than is installed ({error}); run: {advice}"
        if program:
            raise SystemExit(message) from None
        raise MissingExtraError(message) from error


def install_command(extra: str) -> str:
    """The command that installs an extra: of the installed distribution, or of a checkout."""
    try:
        metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"
