"""Identifies adapters by their contents.

Inside the engine an adapter is identified by its key: in the scheduler, in the hash of every KV
block, and in the slots. The key is the name and a digest of the files::

    LoRARequest("pirate", 1, "adapters/pirate")  ->  "pirate@61eeebfa48009a99..."

New weights under an old name are another adapter, so KV of the old weights is never used for them.
An adapter that was evicted and is loaded again unchanged still hits its cached prefixes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from mini_vllm.lora.request import LoRARequest

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"


class AdapterFiles(NamedTuple):
    """The bytes of an adapter's files, read once, so that the same bytes are hashed and loaded."""

    config: bytes
    weights: bytes

    @property
    def digest(self) -> str:
        """32 hexadecimal digits of SHA-256 over both files."""
        digest = hashlib.sha256(len(self.config).to_bytes(8, "little"))
        digest.update(self.config)
        digest.update(self.weights)
        return digest.hexdigest()[:32]


def read_adapter(path: str | Path) -> AdapterFiles:
    """The files of the adapter in folder ``path``.

    Raises:
        ValueError: if folder or file is not there or cannot be read; the message has the full path.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(
            f"there is no adapter folder {str(folder.absolute())!r}; lora_path must be a local "
            "folder, names of a hub are not downloaded"
        )
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        if not (folder / name).is_file():
            old = sorted(file.name for file in folder.glob("adapter_model*") if file.name != name)
            hint = f"it has {old[0]}: convert that to safetensors" if old else "is it an adapter?"
            if name == CONFIG_FILE and old:
                hint = f"it has {old[0]}: save the config beside it"
            elif old and old[0].endswith(".safetensors"):
                hint = f"it has {old[0]}: join the parts in one file"
            elif name == CONFIG_FILE and len(inner := list(folder.glob(f"*/{name}"))) == 1:
                hint = f"its folder {inner[0].parent.name!r} has one; give that"
            raise ValueError(f"the adapter folder {str(folder.absolute())!r} has no {name}; {hint}")
    try:
        return AdapterFiles(*((folder / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)))
    except OSError as error:
        raise ValueError(
            f"the adapter in {str(folder.absolute())!r} cannot be read: {error}"
        ) from error


class Adapter(NamedTuple):
    """A registered adapter."""

    key: str
    name: str
    path: str


class AdapterRegistry:
    """The registered adapters, by their numbers."""

    def __init__(self) -> None:
        self.adapters: dict[int, Adapter] = {}

    def find(self, request: LoRARequest, in_use: Collection[str] = ()) -> Adapter | None:
        """The registered adapter with the request's number; None if its files must be read.

        Args:
            in_use: keys of adapters that unfinished requests use.

        Raises:
            ValueError: if the number belongs to an adapter of another name or folder that is
                in use.
        """
        known = self.adapters.get(request.lora_int_id)
        if known is None or request.load_inplace:
            return None
        if (known.name, known.path) == (request.lora_name, request.lora_path):
            return known
        if known.key in in_use:
            raise ValueError(
                f"lora_int_id {request.lora_int_id} of {request.lora_name!r} "
                f"({request.lora_path}) belongs to {known.name!r} ({known.path}), which requests "
                "are using; choose another number, or wait until they have finished"
            )
        return None

    def read(self, request: LoRARequest) -> Adapter:
        """Read and hash the adapter's files; registers nothing yet.

        Raises:
            ValueError: see :func:`read_adapter`.
        """
        digest = read_adapter(request.lora_path).digest
        return Adapter(f"{request.lora_name}@{digest}", request.lora_name, request.lora_path)

    @property
    def keys(self) -> set[str]:
        """The keys of all registered adapters."""
        return {adapter.key for adapter in self.adapters.values()}
