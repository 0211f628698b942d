"""What a run really does, operation by operation: a trace for https://ui.perfetto.dev.

torch's profiler writes down every operation on the host and, on a GPU, every kernel with its own
time. Recording costs time itself, so figures of a profiled run are no measurements.

Source: vllm/profiler/wrapper.py#L159-L222 (TorchProfilerWrapper) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mini_vllm import platforms
from mini_vllm.config.engine import known_keys
from mini_vllm.errors import show


@contextmanager
def profiled(path: Path | None) -> Iterator[None]:
    """Record what happens inside into ``path``; with None nothing is recorded.

    Raises:
        ValueError: if ``path`` is a folder, or lies in none.
    """
    if path is None:
        yield
        return
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"cannot write the trace to {path}; name a file in a folder that exists")
    from torch.profiler import ProfilerActivity, profile

    names = platforms.current_platform.profiler_activities
    with profile(activities=[getattr(ProfilerActivity, name) for name in names]) as recording:
        yield
    recording.export_chrome_trace(str(path))


def check_profiler_config(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration with what there is here, ``torch_profiler_dir``; none: nothing.

    Raises:
        ValueError: for what is no mapping, and for another key that asks for something.
    """
    if not isinstance(given, Mapping | None):
        raise ValueError(
            f'profiler_config is {show(given)}; it must be {{"torch_profiler_dir": FOLDER}}'
        )
    return known_keys("profiler_config", given or {}, ["torch_profiler_dir"])


def trace_file(profiler_config: Mapping[str, Any], prefix: str | None, number: int) -> Path:
    """Where the ``number``-th recording goes; its folder is made.

    Raises:
        ValueError: if the configuration names no folder.
    """
    folder = profiler_config.get("torch_profiler_dir")
    if not folder:
        raise ValueError(
            "start_profile has no folder to write to; pass "
            'profiler_config={"torch_profiler_dir": FOLDER}'
        )
    Path(folder).mkdir(parents=True, exist_ok=True)
    return Path(folder) / f"{prefix or 'trace'}-{number}.json"
