"""`docs/api.md`: every name of vLLM's front door, and what becomes of it here.

The names are read from the pinned source and kept in `upstream_notes/api.json`, so that the page
can be made, and checked, where the source is not unpacked. What becomes of a name is asked of the
engine itself; only for what is refused or different does a person write why
(`config/vllm_names.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import json
from pathlib import Path

from labkit.course.root import ROOT, upstream_root

PAGE = ROOT / "docs" / "api.md"
NAMES = ROOT / "upstream_notes" / "api.json"
SOURCES = {
    "LLM": ("entrypoints/llm.py", "LLM"),
    "LLM, its bases": ("entrypoints/pooling/offline.py", "PoolingOfflineMixin"),
    "LLM, beams": ("entrypoints/generate/beam_search/offline.py", "BeamSearchOfflineMixin"),
    "AsyncLLM": ("v1/engine/async_llm.py", "AsyncLLM"),
    "SamplingParams": ("sampling_params.py", "SamplingParams"),
    "arguments": ("engine/arg_utils.py", "EngineArgs"),
    "serve": ("entrypoints/openai/cli_args.py", "BaseFrontendArgs"),
    "serve HTTP": ("entrypoints/openai/cli_args.py", "FrontendArgs"),
}
"""Part of the door: the file and class of vLLM that holds its names."""
TITLES = {
    "LLM": "Methods of `LLM`",
    "AsyncLLM": "Methods of `AsyncLLM`",
    "SamplingParams": "Fields of `SamplingParams`",
    "arguments": "Arguments of `LLM` and of the engine, on the command line with dashes",
    "serve": "Options of `serve`",
    "serve HTTP": "Options of `serve` for HTTP",
}


def read_names(source: Path) -> dict[str, list[str]]:
    """The public names of each class, from vLLM's unpacked source."""
    found: dict[str, list[str]] = {}
    for part, (file, name) in SOURCES.items():
        tree = ast.parse((source / "vllm" / file).read_text(encoding="utf-8"))
        node = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
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


def saved_names() -> dict[str, list[str]]:
    return json.loads(NAMES.read_text(encoding="utf-8"))


def our_names() -> dict[str, set[str]]:
    """What there is here, of each part."""
    from mini_vllm.config.engine import WHOLE_SECTIONS, arguments
    from mini_vllm.config.vllm_names import ALIASES
    from mini_vllm.engine.async_llm import AsyncLLM
    from mini_vllm.engine.llm import LLM
    from mini_vllm.entrypoints.cli import SPECULATIVE_OPTIONS, build_parser
    from mini_vllm.sampling_params import SamplingParams

    commands = next(a for a in build_parser()._actions if isinstance(a.choices, dict))
    assert isinstance(commands.choices, dict)
    options = {action.dest for action in commands.choices["serve"]._actions}
    own = {"model", "skip_tokenizer_init", "enable_lora", "scheduler_cls", *SPECULATIVE_OPTIONS}
    own.add("disable_log_stats")  # LLM's; the command line drops it
    return {
        "LLM": {name for name in dir(LLM) if not name.startswith("_")},
        "AsyncLLM": {name for name in dir(AsyncLLM) if not name.startswith("_")} | {"tokenizer"},
        "SamplingParams": {field.name for field in dataclasses.fields(SamplingParams)},
        "arguments": {*arguments(), *WHOLE_SECTIONS, *own, *ALIASES, *options, "profiler_config"},
        "serve": options,
        "serve HTTP": options,
    }


def verdict(name: str, ours: set[str]) -> tuple[str, str]:
    """("works" | "differs" | "no effect" | "refused" | "", why) of one name; "" if nobody knows."""
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
    for part, names in saved_names().items():
        rows = [(*verdict(name, ours[part]), name) for name in names]
        counts = ", ".join(f"{sum(row[0] == kind for row in rows)} {kind}" for kind in order[:4])
        lines += [f"## {TITLES[part]}", "", f"{len(rows)} names: {counts}.", ""]
        lines += ["| name | | |", "|---|---|---|"]
        rows.sort(key=lambda row: (order.index(row[0]), row[2]))
        lines += [f"| `{name}` | {kind} | {why} |" for kind, why, name in rows]
        lines.append("")
    return "\n".join(lines).rstrip()


def update_names() -> None:
    """Read the names anew; needs the unpacked source (`make upstream`)."""
    source = upstream_root(ROOT)
    if source is None:
        raise FileNotFoundError("vLLM's source is not unpacked; `make upstream` does it")
    NAMES.write_text(json.dumps(read_names(source), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    update_names()
