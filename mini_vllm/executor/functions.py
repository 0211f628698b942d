"""Functions that go to workers in other processes."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle


def pack_function(function: Any) -> bytes:
    """A function as bytes: by name if workers can import it, otherwise all of it.

    Raises:
        TypeError: if it cannot be written; the message has its name.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and not _is_installed(module)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(function)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{name} cannot be sent to the workers: {error}") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_installed(module: ModuleType) -> bool:
    """Whether every Python on this machine finds it, unlike a script or a test."""
    home, paths = getattr(module, "__file__", None), sysconfig.get_paths()
    folders = (paths["stdlib"], paths["purelib"], paths["platlib"], Path(__file__).parents[1])
    return home is None or any(Path(home).is_relative_to(folder) for folder in folders)
