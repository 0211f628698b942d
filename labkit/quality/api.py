"""`docs/api.md`: every name of vLLM's front door, and what becomes of it here.

The names are read from the pinned source and kept in `upstream_notes/api.json`, so that the page
can be made, and checked, where the source is not unpacked. What becomes of a name is asked of the
engine itself; only for what is refused or different does a person write why
(`config/vllm_names.py`). What a newer release has added or taken away stands behind each table.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path

from labkit.citations.drift import fetch_release
from labkit.course.root import ROOT, UPSTREAM, upstream_root
from mini_vllm.config.profiles import RELEASES

PAGE = ROOT / "docs" / "api.md"
NAMES = ROOT / "upstream_notes" / "api.json"
NEWER_NAMES = ROOT / "upstream_notes" / "api-current.json"
"""The same of the release that the profile "current" follows."""
SOURCES = {
    "LLM": ("entrypoints/llm.py", "LLM"),
    "LLM, its bases": ("entrypoints/pooling/offline.py", "PoolingOfflineMixin"),
    "LLM, beams": ("entrypoints/generate/beam_search/offline.py", "BeamSearchOfflineMixin"),
    "LLM, weights": ("entrypoints/rl/offline.py", "RLOfflineMixin"),
    "AsyncLLM": ("v1/engine/async_llm.py", "AsyncLLM"),
    "SamplingParams": ("sampling_params.py", "SamplingParams"),
    "PoolingParams": ("pooling_params.py", "PoolingParams"),
    "PoolerConfig": ("config/pooler.py", "PoolerConfig"),
    "arguments": ("engine/arg_utils.py", "EngineArgs"),
    "serve": ("entrypoints/openai/cli_args.py", "BaseFrontendArgs"),
    "serve HTTP": ("entrypoints/openai/cli_args.py", "FrontendArgs"),
}
"""Part of the door: the file and class of vLLM that holds its names. A release may have the class
elsewhere, or, of those of `LLM`, not at all."""
TITLES = {
    "LLM": "Methods of `LLM`",
    "AsyncLLM": "Methods of `AsyncLLM`",
    "SamplingParams": "Fields of `SamplingParams`",
    "PoolingParams": "Fields of `PoolingParams`",
    "PoolerConfig": "Fields of `PoolerConfig`",
    "arguments": "Arguments of `LLM` and of the engine, on the command line with dashes",
    "serve": "Options of `serve`",
    "serve HTTP": "Options of `serve` for HTTP",
}


def read_names(source: Path) -> dict[str, list[str]]:
    """The public names of each class, from vLLM's unpacked source."""
    found: dict[str, list[str]] = {}
    for part, (file, name) in SOURCES.items():
        node = _class(source / "vllm", file, name)
        if node is None:
            continue
        if part.startswith(("LLM", "AsyncLLM")):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            names = [n.name for n in node.body if isinstance(n, methods)]
        else:
            targets = [n.target for n in node.body if isinstance(n, ast.AnnAssign)]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        part = part.partition(",")[0]
        names = [name for name in names if not name.startswith("_")]
        found[part] = sorted({*names, *found.get(part, ())})
    return found


def _class(package: Path, file: str, name: str) -> ast.ClassDef | None:
    """A class of vLLM, where it was or where it has moved to; None: the release has none."""
    usual = package / file
    for place in (usual, *sorted(package.rglob("*.py"))):
        text = place.read_text(encoding="utf-8") if place.is_file() else ""
        if f"class {name}" in text:
            for node in ast.parse(text).body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    return node
    return None


def saved_names() -> dict[str, list[str]]:
    return json.loads(NAMES.read_text(encoding="utf-8"))


def newer_names() -> tuple[str, dict[str, list[str]]]:
    """The newer release, and its names."""
    saved = json.loads(NEWER_NAMES.read_text(encoding="utf-8"))
    return saved["release"], saved["names"]


def our_names() -> dict[str, set[str]]:
    """What there is here, of each part."""
    from mini_vllm.config import PoolerConfig
    from mini_vllm.config.engine import SPECULATIVE_ARGUMENTS, WHOLE_SECTIONS, arguments
    from mini_vllm.config.vllm_names import ALIASES
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.engine.llm import LLM
    from mini_vllm.entrypoints.cli import build_parser
    from mini_vllm.pooling_params import PoolingParams
    from mini_vllm.sampling_params import SamplingParams

    commands = next(a for a in build_parser()._actions if isinstance(a.choices, dict))
    assert isinstance(commands.choices, dict)
    options = {action.dest for action in commands.choices["serve"]._actions}
    own = {"model", "skip_tokenizer_init", "enable_lora", "scheduler_cls", *SPECULATIVE_ARGUMENTS}
    own.add("disable_log_stats")  # LLM's; the command line drops it
    return {
        "LLM": {name for name in dir(LLM) if not name.startswith("_")},
        "AsyncLLM": {name for name in dir(AsyncLLM) if not name.startswith("_")} | {"tokenizer"},
        "SamplingParams": {field.name for field in dataclasses.fields(SamplingParams)},
        "PoolingParams": {field.name for field in dataclasses.fields(PoolingParams)},
        "PoolerConfig": {field.name for field in dataclasses.fields(PoolerConfig)},
        "arguments": {*arguments(), *WHOLE_SECTIONS, *own, *ALIASES, *options, "profiler_config"},
        "serve": options,
        "serve HTTP": options,
    }


def verdict(name: str, ours: set[str]) -> tuple[str, str]:
    """("works" | "differs" | "no effect" | "refused" | "", why) of one name; "" if unknown."""
    from mini_vllm.config.vllm_names import ALIASES, DIFFERS, IGNORED, why_not

    if name in ALIASES:
        return "works", f"also called `{ALIASES[name]}`"
    if name in ours:
        return ("differs", DIFFERS[name]) if name in DIFFERS else ("works", "")
    if name in IGNORED:
        return "no effect", IGNORED[name]
    why = why_not(name)
    return ("", "") if why is None else ("refused", why)


def table() -> str:
    """The generated part of the page: a table for each part, what works first."""
    order, ours = ["works", "differs", "no effect", "refused", ""], our_names()
    lines: list[str] = []
    release, newer = newer_names()
    for part, names in saved_names().items():
        rows = [(*verdict(name, ours[part]), name) for name in names]
        if part == "SamplingParams":
            rows = [(kind, why or _range(name), name) for kind, why, name in rows]
        counts = ", ".join(f"{sum(row[0] == kind for row in rows)} {kind}" for kind in order[:4])
        lines += [f"## {TITLES[part]}", "", f"{len(rows)} names: {counts}.", ""]
        lines += ["| name | | |", "|---|---|---|"]
        rows.sort(key=lambda row: (order.index(row[0]), row[2]))
        lines += [f"| `{name}` | {kind} | {why} |" for kind, why, name in rows]
        lines += _beyond(names) if part == "SamplingParams" else []
        lines += ["", *_since(release, set(names), set(newer.get(part, ())), ours[part])]
    return "\n".join(lines).rstrip()


def _range(name: str) -> str:
    """What a sampling parameter of one number may be, and what switches it off."""
    from mini_vllm.sampling_params import NUMBERS

    number = NUMBERS.get(name)
    return "" if number is None else f"{number.limit}; {number.fix}"


def _beyond(names: list[str]) -> list[str]:
    """Sampling parameters of this engine's own, with what each does."""
    from mini_vllm.sampling_params import NUMBERS

    own = [name for name in NUMBERS if name not in names]
    return [f"| `{name}` | not vLLM's | {NUMBERS[name].about}; {_range(name)} |" for name in own]


def _since(release: str, old: set[str], new: set[str], ours: set[str]) -> list[str]:
    """What a newer release has taken away and added, as sentences."""
    gone, added = sorted(old - new), sorted(new - old)
    lines = []
    if gone:
        lines += [f"Gone in vLLM {release}, {len(gone)}: {_listed(gone)}.", ""]
    if here := [name for name in added if name in ours]:
        lines += [f"New in vLLM {release}, and here: {_listed(here)}.", ""]
    if others := [name for name in added if name not in ours]:
        lines += [f"New in vLLM {release}, and not here, {len(others)}: {_listed(others)}.", ""]
    return lines or [f"vLLM {release} has the same names.", ""]


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def update_names() -> None:
    """Read the names anew; needs the unpacked source (`make upstream`)."""
    source = upstream_root(ROOT)
    if source is None:
        raise FileNotFoundError("vLLM's source is not unpacked; `make upstream` does it")
    NAMES.write_text(json.dumps(read_names(source), indent=1) + "\n", encoding="utf-8")


def update_newer_names(source: Path, release: str) -> None:
    """Read the names of a newer release's unpacked source."""
    names = {"release": release, "names": read_names(source)}
    NEWER_NAMES.write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    update_names()
    newest = RELEASES["current"]
    update_newer_names(fetch_release(newest, ROOT / UPSTREAM.parent), newest)
