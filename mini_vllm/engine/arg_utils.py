"""What an engine is started with, as one object that a script can build and hand on.

Source: vllm/engine/arg_utils.py#L412-L1715 (EngineArgs) @ v0.22.1
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, Unpack, cast

from mini_vllm.config import EngineConfig
from mini_vllm.config.arguments import EngineOptions
from mini_vllm.config.engine import default_of
from mini_vllm.config.options import (
    add_engine_options,
    given_options,
    join_dotted,
    with_dashes,
    without_defaults,
)
from mini_vllm.config.vllm_names import ALIASES, IGNORED, refuse
from mini_vllm.core.scheduler import Scheduler
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.errors import show

__all__ = ["AsyncEngineArgs", "EngineArgs", "FlexibleArgumentParser"]


class FlexibleArgumentParser(argparse.ArgumentParser):
    """A command line that takes underscores for dashes, and keys of a section after dots, as that
    of ``serve`` does: ``--max_model_len 64 --speculative-config.method ngram``.

    Source: vllm/utils/argparse_utils.py#L113-L126 (FlexibleArgumentParser) @ v0.22.1
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = join_dotted(with_dashes(list(sys.argv[1:] if args is None else args)))
        return super().parse_known_args(without_defaults(words, self), namespace)


class _Given:
    """Arguments of an engine as a dataclass whose fields are those that were given, so that
    ``LLM(**vars(args))``, ``LLM(**asdict(args))`` and ``replace(args, seed=1)`` are good. The
    fields of the class are all that may be given.

    Scripts read and set arguments one by one, too: ``args.max_num_seqs = 4``. What is set is
    checked with the others when the engine is made.
    """

    own: ClassVar[tuple[str, ...]]
    """Arguments that are no options of the engine."""

    if not TYPE_CHECKING:

        class _Fields:
            def __get__(self, args: Any, owner: type) -> dict[str, Any]:
                every = [*owner.own, *EngineOptions.__annotations__]
                given = every if args is None else list(vars(args))
                return make_dataclass(owner.__name__, given).__dataclass_fields__

        __dataclass_fields__ = _Fields()

        def __getattr__(self, name: str) -> Any:
            """The default of an option that was not given; None if the engine decides then."""
            if name in ALIASES:
                return getattr(self, ALIASES[name])
            if name in EngineOptions.__annotations__ or name in IGNORED:
                return default_of(name)
            refuse(self, name)

    @property
    def options(self) -> EngineOptions:
        """The options of the engine that were given."""
        given = {name: value for name, value in vars(self).items() if name not in self.own}
        return cast(EngineOptions, given)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it may be changed

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({given})"


class EngineArgs(_Given):
    """What :class:`~.llm_engine.LLMEngine` starts with: ``EngineArgs("storyteller", seed=1)``.

    Args:
        model: a folder in Hugging Face layout, a hub's name, or the name of a bundled model.
        skip_tokenizer_init: load no tokenizer; prompts must be token ids, texts stay empty.
        profiler_config: where a recording goes: {"torch_profiler_dir": FOLDER}.
        scheduler_cls: as of ``LLM``.
        disable_log_stats: False: :meth:`~.llm_engine.LLMEngine.get_metrics` returns all metrics.
        options: every other argument that ``LLM`` takes.
    """

    own: ClassVar[tuple[str, ...]] = (
        "model", "skip_tokenizer_init", "profiler_config", "scheduler_cls", "disable_log_stats",
    )  # fmt: skip

    def __init__(
        self,
        model: str | Path,
        *,
        skip_tokenizer_init: bool = False,
        profiler_config: Mapping[str, Any] | None = None,
        scheduler_cls: type[Scheduler] | str | None = Scheduler,
        disable_log_stats: bool = True,
        **options: Unpack[EngineOptions],
    ) -> None:
        self.model, self.skip_tokenizer_init = model, skip_tokenizer_init
        self.profiler_config, self.scheduler_cls = profiler_config, scheduler_cls
        self.disable_log_stats = disable_log_stats
        vars(self).update(options)

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
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """What :meth:`add_cli_args` has read."""
        skips = getattr(args, "skip_tokenizer_init", False)
        return cls(args.model, skip_tokenizer_init=skips, **given_options(args))


class AsyncEngineArgs(EngineArgs):
    """What `AsyncLLM` starts with: ``AsyncEngineArgs("storyteller", max_num_seqs=64)``.

    Args:
        model: a folder in Hugging Face layout, or the name of a bundled model.
        scheduler: a policy's name, or ``path/to/file.py:ClassName``; also called `scheduler_cls`.
        skip_tokenizer_init: load no tokenizer; prompts must be token ids, texts stay empty.
        stream_interval: tokens between two outputs of a stream.
        max_num_queued_reqs, max_num_queued_tokens: see :class:`~.admission.Admission`.
        profiler_config: where a recording goes: {"torch_profiler_dir": FOLDER}.
        disable_log_stats: vLLM's; figures are counted always.
        options: every other argument that ``LLM`` takes.

    Source: vllm/engine/arg_utils.py#L2567-L2593 (AsyncEngineArgs) @ v0.22.1
    """

    own = (
        "model", "skip_tokenizer_init", "profiler_config", "scheduler", "disable_log_stats",
        "stream_interval", "max_num_queued_reqs", "max_num_queued_tokens",
    )  # fmt: skip

    def __init__(
        self,
        model: str | Path,
        *,
        scheduler: str = "vllm-v1",
        scheduler_cls: str | None = None,
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
        if not isinstance(scheduler_cls, str | None):
            raise ValueError(
                f"scheduler_cls is {show(scheduler_cls)}; the engine is in another process, so "
                "name a policy, or path/to/file.py:ClassName"
            )
        self.model, self.scheduler = model, scheduler_cls or scheduler
        self.skip_tokenizer_init, self.stream_interval = skip_tokenizer_init, stream_interval
        self.max_num_queued_reqs = max_num_queued_reqs
        self.max_num_queued_tokens = max_num_queued_tokens
        self.profiler_config, self.disable_log_stats = profiler_config, disable_log_stats
        vars(self).update(options)

    if not TYPE_CHECKING:  # EngineArgs has it as an attribute

        @property
        def scheduler_cls(self) -> str:
            """The name of ``scheduler`` in vLLM, and in :class:`EngineArgs`."""
            return self.scheduler

        @scheduler_cls.setter
        def scheduler_cls(self, name: str) -> None:
            self.scheduler = name
