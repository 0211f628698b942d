"""Which model to load, and how."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mini_vllm.config.checks import require_at_least, require_flag, require_one_of
from mini_vllm.config.pooler import CONVERTS, RUNNERS
from mini_vllm.errors import show
from mini_vllm.import_utils import resolve_obj_by_qualname
from mini_vllm.json_files import parse_json

MAX_THREADS = 1024
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ModelConfig:
    """Which model to load, and how.

    Source: vllm/config/model.py#L116-L1898 (ModelConfig) @ v0.22.1
    """

    model: str
    """A folder in Hugging Face layout, or a GGUF file. (`LLM` takes names, too.)"""
    tokenizer: str | None = None
    """Folder or name of another tokenizer; None: the model's own."""
    revision: str | None = None
    """Branch, tag or commit of a model on a hub; None: its main branch."""
    tokenizer_revision: str | None = None
    """The same for `tokenizer`."""
    download_dir: str | None = None
    """Where downloads are kept; None: the cache in HF_HOME."""
    hf_token: str | bool | None = field(default=None, repr=False)
    """Token for gated and private models; None or True: HF_TOKEN, or the token of `hf auth login`;
    False: none is sent."""
    dtype: str = "auto"
    """Element type of weights and KV cache; "auto": the checkpoint's."""
    device: str = "auto"
    """ "cpu", "cuda", "mps", the device of a platform plugin, or "auto": the plugin's, or cuda if
    there is one. See docs/platforms.md."""
    load_format: str = "auto"
    """ "auto": read the safetensors; "dummy": seeded random weights, for benchmarks."""
    use_tqdm_on_load: bool = True
    """Whether stderr shows the progress of loading: a bar on a terminal, lines elsewhere."""
    seed: int = 0
    """Seed of the random numbers of requests without a seed."""
    num_threads: int | None = None
    """Threads torch may use on a CPU, in the whole process. None: one for small steps of a small
    model, whose products are too small to split, and torch's own choice for others."""
    attention_backend: str | None = None
    """Name of an attention backend; None: the fastest one for the device."""
    enforce_eager: bool = False
    """Use no CUDA graphs: launch every kernel from Python. Graphs are used on GPUs only."""
    generation_config: str = "auto"
    """Default sampling parameters: "auto": the model's `generation_config.json`; "vllm":
    `SamplingParams()`; or another folder with such a file."""
    override_generation_config: Mapping[str, Any] | None = None
    """Entries that override those of that file, such as {"temperature": 0.5}."""
    hf_overrides: Mapping[str, Any] | None = None
    """Entries that override those of `config.json`."""
    logits_processors: Sequence[str | type] | None = None
    """Classes that change logits, or "module:Class"; see `sample.custom`."""
    max_logprobs: int = 20
    """Most logprobs a request may ask for, for each token; -1: the whole vocabulary."""
    quantization: str | None = None
    """How weights are stored; None: as in the checkpoint. "int8" and "fp8" quantise a checkpoint in
    full precision while it is loaded; "gguf" keeps the blocks of a GGUF file quantised."""
    runner: str = "auto"
    """ "generate": the model generates text; "pooling": it embeds or classifies. "auto": as its
    folder says."""
    convert: str = "auto"
    """How a generating model is converted for "pooling": "embed", "classify" or "none". "auto": as
    its architecture says, else "embed"."""
    compile_model: bool = False
    """Fuse the operations between attention calls with `torch.compile`; the first steps wait for
    it."""

    @property
    def pools(self) -> bool:
        """Whether the model embeds or classifies. Valid only after
        :func:`mini_vllm.pooling.config.settle_runner` has set `runner`."""
        return self.runner == "pooling"

    @property
    def max_model_len(self) -> int | None:
        """The scheduler's limit; None before the `EngineConfig` is made."""
        return self.__dict__.get("_max_model_len")

    @property
    def hf_config(self) -> Any:
        """The model's `config.json` with `hf_overrides`, as transformers reads it.

        Raises:
            OSError: without that file, as of a GGUF file.
            ValueError: for an architecture that transformers does not know.

        Source: vllm/config/model.py#L548-L566 (ModelConfig.hf_config) @ v0.22.1
        """
        auto_config = resolve_obj_by_qualname("transformers.AutoConfig")  # takes a second to load
        config = auto_config.from_pretrained(self.model)
        config.update(dict(self.hf_overrides or {}))
        return config

    @property
    def hf_text_config(self) -> Any:
        """The part of :attr:`hf_config` that is the language model's."""
        return self.hf_config.get_text_config()

    def get_vocab_size(self) -> int:
        """Entries of the vocabulary, as the model's `config.json` says.

        Raises:
            OSError: without that file, as of a GGUF file; ask the tokenizer for its length.

        Source: vllm/config/model.py#L1261-L1262 (ModelConfig.get_vocab_size) @ v0.22.1
        """
        config = parse_json((Path(self.model) / "config.json").read_text(encoding="utf-8"))
        return int((config.get("text_config") or config)["vocab_size"])

    def __post_init__(self) -> None:
        require_one_of("dtype", self.dtype, DTYPES)
        require_one_of("runner", self.runner, RUNNERS)
        require_one_of("convert", self.convert, CONVERTS)
        for name in ("enforce_eager", "compile_model", "use_tqdm_on_load"):
            require_flag(name, getattr(self, name))
        for name in ("revision", "tokenizer_revision", "download_dir", "hf_token"):
            if name == "hf_token" and isinstance(self.hf_token, bool):
                continue
            if not isinstance(value := getattr(self, name), str | None) or value == "":
                shown = "" if name == "hf_token" else f" is {show(value)}; it"
                raise ValueError(
                    f"{name}{shown} must be a text of at least 1 character; or leave it out"
                )
        if self.num_threads is not None:
            require_at_least("num_threads", self.num_threads, 1, "leave it out for our choice")
            if self.num_threads > MAX_THREADS:
                raise ValueError(
                    f"num_threads is {self.num_threads}; it must be at most {MAX_THREADS}; leave "
                    "it out to let us choose"
                )
        if not re.fullmatch(r"[a-z]\w*(:\d{1,3})?", str(self.device)):  # platforms know the rest
            raise ValueError(
                f"device is {show(self.device)}; it must be 'auto', 'cpu', 'cuda' or 'mps', one "
                "with a number such as 'cuda:1', or the device of a plugin"
            )
        require_at_least("max_logprobs", self.max_logprobs, -1, "-1 is the whole vocabulary")
        require_at_least("seed", self.seed, -(2**63), "0 is the default")
        if self.seed >= 2**64:
            raise ValueError(f"seed is {show(self.seed)}; it must be below 2**64; 0 is the default")
        if not isinstance(self.generation_config, str):
            raise ValueError(
                f"generation_config is {show(self.generation_config)}; it must be 'auto', 'vllm' "
                "or a folder"
            )
        if not isinstance(self.override_generation_config, Mapping | None):
            raise ValueError(
                f"override_generation_config is {show(self.override_generation_config)}; it must "
                "be a dict"
            )
        if not isinstance(self.hf_overrides, Mapping | None):
            raise ValueError(f"hf_overrides is {show(self.hf_overrides)}; it must be a dict")
        if not isinstance(self.quantization, str | None):
            raise ValueError(
                f"quantization is {show(self.quantization)}; it must be a name, such as 'int8', or "
                "left out"
            )
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format is {self.load_format!r}; it must be 'auto' or 'dummy'")
