"""Imports every module of the engine that Python finds; prints what each says that cannot be."""

import importlib
import json
from pathlib import Path

import mini_vllm

root = Path(mini_vllm.__file__).parent
said = {}
for file in sorted(root.rglob("*.py")):
    parts = file.relative_to(root.parent).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    try:
        importlib.import_module(name)
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
