"""Imports objects by their qualified names."""

from __future__ import annotations

import importlib
from typing import Any


def resolve_obj_by_qualname(qualname: str) -> Any:
    """The object with the name `package.module.name`, or `package.module:name`.

    Raises:
        ImportError: if there is no such module, or no such name in it.

    Source: vllm/utils/import_utils.py#L104-L110 (resolve_obj_by_qualname) @ v0.22.1.
    """
    module, _, name = qualname.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ValueError) as error:
        raise ImportError(f"there is no {qualname!r}: {error}") from error
