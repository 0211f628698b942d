"""Optional packages, which are extras of the distribution.

`pip install mini-vllm-engine` installs the packages that an engine process needs. A server, images
and so on need more. Their modules import these inside :func:`from_extra`, so that the error for a
missing package has the command that installs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

DISTRIBUTION = "mini-vllm-engine"
"""The name for `pip` of the package `mini_vllm`."""


class MissingExtraError(ImportError, ValueError):
    """A package of an extra is not installed.

    It is a ValueError, too, so that an option or a request that needs the package is refused like
    any other that is not supported.
    """


@contextmanager
def from_extra(
    extra: str, purpose: str, instead: str = "", program: bool = False
) -> Iterator[None]:
    """Import packages of an extra in the body of this ``with``.

    Args:
        purpose: what needs them; the message begins with it.
        instead: an alternative without them, if there is one; the message ends with it.
        program: for a module that is run by ``python -m``: the process then ends with the message
            and exit code 1, without a traceback.

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
