"""Descriptions of the fields of a configuration class, read from its source.

So the description of an option is in one place, at its field. vLLM makes its help in the same way.

Source: vllm/config/utils.py#L160-L198 (get_attr_docs) @ v0.22.1
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
import sys


@functools.cache
def descriptions(section: type) -> dict[str, str]:
    """By field: the string below it, its entry under "Attributes:" in the class's docstring, or the
    description of its declared number."""
    found = _listed(inspect.getdoc(section) or "")
    for declared in dataclasses.fields(section) if dataclasses.is_dataclass(section) else ():
        if number := declared.metadata.get("number"):
            found[declared.name] = f"{number.about}; {number.limit}; {number.fix}"
    for field, text in itertools.pairwise(_classes(section.__module__)[section.__name__].body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = " ".join(text.value.value.split())
    return found


@functools.cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module. `inspect.getsource` of each takes three times as long."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def summary(section: type) -> str:
    """The first sentence of a class's docstring."""
    return (inspect.getdoc(section) or "").split("\n\n")[0].replace("\n", " ")


def _listed(docstring: str) -> dict[str, str]:
    _, _, attributes = docstring.partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", "\n" + attributes)[1:]:
        names, _, text = entry.strip().partition(":")
        for name in names.split(","):
            found[name.strip()] = " ".join(text.split())
    return found
