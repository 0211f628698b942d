"""What an engine is started with, as one object that a script can build and hand on.

Source: vllm/engine/arg_utils.py#L412-L1715 (EngineArgs) @ v0.22.1
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from mini_vllm.config import EngineConfig
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.options import add_engine_options, given_options
from mini_vllm.config.vllm_names import refuse
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.errors import show

__all__ = ["AsyncEngineArgs", "EngineArgs"]


class _OptionsAsAttributes:
    """Scripts read and set vLLM's arguments one by one: ``engine_args.max_num_seqs = 4``."""

    options: EngineOptions

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """An option that was given; None if it was not, for then the engine decides."""
            options = {} if name.startswith("_") else self.__dict__.get("options", {})
            if name in options:
                return options[name]
            if name in EngineOptions.__annotations__:
                return None
            refuse(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            """One of the engine's options is checked with the others when the engine is made."""
            is_own = name in self.__dict__ or "options" not in self.__dict__
            if is_own or hasattr(type(self), name):
                super().__setattr__(name, value)
            else:
                self.options[name] = value


class EngineArgs(_OptionsAsAttributes):
    """What :class:`~.llm_engine.LLMEngine` starts with: ``EngineArgs("storyteller", seed=1)``.

    Args:
        model: a folder in Hugging Face layout, a hub's name, or the name of a bundled model.
        skip_tokenizer_init: load no tokenizer; prompts must be token ids, texts stay empty.
        profiler_config: where a recording goes: {"torch_profiler_dir": FOLDER}.
        scheduler_cls: as of ``LLM``.
        disable_log_stats: False: :meth:`~.llm_engine.LLMEngine.get_metrics` returns all metrics.
        options: every other argument that ``LLM`` takes.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        skip_tokenizer_init: bool = False,
        profiler_config: Mapping[str, Any] | None = None,
        scheduler_cls: type[Scheduler] | str = Scheduler,
        disable_log_stats: bool = True,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.model, self.skip_tokenizer_init = model, skip_tokenizer_init
        self.profiler_config, self.scheduler_cls = profiler_config, scheduler_cls
        self.disable_log_stats = disable_log_stats
        self.options = options  # the last: what is set from now on is one of them

    def create_engine_config(self) -> EngineConfig:
        """Raises ValueError or TypeError for what ``LLM`` would refuse, too."""
        return make_engine_config(self.model, **self.options)

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a script's own command line all options of the engine. Those that are not given stay
        out of what is parsed, so ``LLM(**vars(parser.parse_args()))`` is good, too."""
        parser.add_argument("--model", default="storyteller")
        skip = "--skip-tokenizer-init"
        parser.add_argument(skip, action="store_true", default=argparse.SUPPRESS)
        add_engine_options(parser)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """What :meth:`add_cli_args` has read."""
        skips = getattr(args, "skip_tokenizer_init", False)
        return cls(args.model, skip_tokenizer_init=skips, **given_options(args))


@dataclass
class AsyncEngineArgs(_OptionsAsAttributes):
    """What `AsyncLLM` starts with: ``AsyncEngineArgs("storyteller", max_num_seqs=64)``.

    Args:
        model: a folder in Hugging Face layout, or the name of a bundled model.
        scheduler: a policy's name, or ``path/to/file.py:ClassName``.
        skip_tokenizer_init: load no tokenizer; prompts must be token ids, texts stay empty.
        stream_interval: tokens between two outputs of a stream.
        max_num_queued_reqs, max_num_queued_tokens: see :class:`~.admission.Admission`.
        profiler_config: where a recording goes: {"torch_profiler_dir": FOLDER}.
        disable_log_stats: vLLM's; figures are counted always.
        options: every other argument that ``LLM`` takes.

    Source: vllm/engine/arg_utils.py#L2567-L2593 (AsyncEngineArgs) @ v0.22.1
    """

    model: str | Path
    scheduler: str = "vllm-v1"
    skip_tokenizer_init: bool = False
    stream_interval: int = 1
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    profiler_config: Mapping[str, Any] | None = None
    options: EngineOptions = field(default_factory=EngineOptions)

    def __init__(
        self,
        model: str | Path,
        *,
        scheduler: str = "vllm-v1",
        skip_tokenizer_init: bool = False,
        stream_interval: int = 1,
        max_num_queued_reqs: int | None = None,
        max_num_queued_tokens: int | None = None,
        profiler_config: Mapping[str, Any] | None = None,
        disable_log_stats: bool = True,
        **options: Unpack[EngineOptions],
    ) -> None:
        for name, value in (
            ("stream_interval", stream_interval),
            ("max_num_queued_reqs", max_num_queued_reqs),
            ("max_num_queued_tokens", max_num_queued_tokens),
        ):
            if value is not None and not (type(value) is int and value >= 1):
                raise ValueError(f"{name} is {show(value)}; it must be a whole number, at least 1")
        self.model, self.scheduler = model, scheduler
        self.skip_tokenizer_init, self.stream_interval = skip_tokenizer_init, stream_interval
        self.max_num_queued_reqs = max_num_queued_reqs
        self.max_num_queued_tokens = max_num_queued_tokens
        self.profiler_config = profiler_config
        self.options = options

    def create_engine_config(self) -> EngineConfig:
        """Raises ValueError or TypeError for what ``LLM`` would refuse, too."""
        return make_engine_config(self.model, **self.options)
