"""A tokenizer for a fast start: `transformers` is imported only when it is needed.

The `tokenizers` library encodes and decodes, and loads in milliseconds. `transformers` wraps it and
takes about a second to import; it adds chats, batches, offsets and the classes of families. Where
the wrapper would add nothing, the library is called directly::

    encode, decode, get_vocab, added_tokens_decoder ...  ->  tokenizers
    everything else                                      ->  transformers, loaded on first use
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.gguf import is_gguf, read_gguf
from mini_vllm.json_files import read_json
from mini_vllm.model.checkpoint_files import check_tokenizer_files, load_tokenizer, named_tokens
from mini_vllm.model.gguf import tokenizer as gguf_tokenizer
from mini_vllm.model.memory import trim

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of `transformers` that use `tokenizer.json` unchanged; classes of families rebuild it."""
PLAIN_ENTRIES = {
    "additional_special_tokens", "backend", "bos_token", "chat_template",
    "clean_up_tokenization_spaces", "eos_token", "extra_special_tokens", "model_input_names",
    "model_max_length", "pad_token", "padding_side", "tokenizer_class", "unk_token",
}  # fmt: skip
"""Entries of `tokenizer_config.json` that do not change the ids of a text."""
MOST_TOKENS = 100_000
"""With more tokens than this, `transformers` may correct the pattern that splits texts."""


class LazyTokenizer:
    """A tokenizer with the interface of `transformers`; the library's own object is :attr:`whole`.

    Args:
        backend: of the `tokenizers` library. It is the same as `whole.backend_tokenizer`.
        eos_token: a token of its vocabulary, or None.
        load: makes `whole`.
    """

    def __init__(self, backend: Tokenizer, eos_token: str | None, load: Callable[[], Any]) -> None:
        self.backend_tokenizer = backend
        self.eos_token = eos_token
        self.eos_token_id = None if eos_token is None else backend.token_to_id(eos_token)
        self.added_tokens_decoder = backend.get_added_tokens_decoder()
        self._whole: Any = None
        self._load = load
        self._lock = threading.Lock()  # must be last: later attributes are set on `whole`

    @property
    def whole(self) -> Any:
        """The tokenizer of `transformers`, loaded on first use."""
        with self._lock:
            if self._whole is None:
                self._whole = self._load()
        return self._whole

    def encode(self, text: str, add_special_tokens: bool = True, **options: Any) -> list[int]:
        if options or not isinstance(text, str):
            ids: list[int] = self.whole.encode(
                text, add_special_tokens=add_special_tokens, **options
            )
            return ids
        return self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        is_plain = isinstance(token_ids, list) and not options
        if not is_plain or not all(isinstance(token_id, int) for token_id in token_ids):
            text: str = self.whole.decode(token_ids, skip_special_tokens, **options)
            return text
        return self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def __len__(self) -> int:
        return self.backend_tokenizer.get_vocab_size(with_added_tokens=True)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.whole(*args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_lock" not in vars(self):  # while it is being copied
            raise AttributeError(name)
        return getattr(self.whole, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Attributes that a caller sets, such as `chat_template`, are set on the whole
        tokenizer."""
        if name in vars(self) or "_lock" not in vars(self):
            super().__setattr__(name, value)
        else:
            setattr(self.whole, name, value)


def load_lazy_tokenizer(path: str | Path) -> Any:
    """A :class:`LazyTokenizer` if it is equivalent, else the result of `load_tokenizer`.

    Raises:
        ValueError: as `load_tokenizer`.
    """
    path = Path(path)
    try:
        found = _of_gguf(path) if is_gguf(path) else _of_folder(path)
    except Exception:  # the library promises none in particular; `load_tokenizer` names the file
        found = None
    trim()  # the data it was built from take more memory than the tokenizer
    return load_tokenizer(path) if found is None else found


def whole_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer of `transformers` behind a lazy one; any other tokenizer unchanged."""
    return tokenizer.whole if isinstance(tokenizer, LazyTokenizer) else tokenizer


def _of_gguf(path: Path) -> LazyTokenizer | None:
    file = read_gguf(path)
    gguf_tokenizer.chat_templates(file)  # raises errors of the templates now
    backend = gguf_tokenizer.build_tokenizer(file)
    special = gguf_tokenizer.special_tokens(file, backend)
    if not knows_as_special(backend, special.values()):
        return None
    return LazyTokenizer(
        backend,
        special.get("eos_token"),
        lambda: gguf_tokenizer.wrap(file, backend),
    )


def _of_folder(folder: Path) -> LazyTokenizer | None:
    """None if `transformers` may do more than `tokenizer.json` says."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer_config.json"
    config: Mapping[str, Any] = read_json(file) if file.is_file() else {}
    is_plain = config.get("tokenizer_class") in GENERIC and PLAIN_ENTRIES.issuperset(config)
    eos_token = config.get("eos_token")
    if not is_plain or config.get("clean_up_tokenization_spaces") or not isinstance(eos_token, str):
        return None
    check_tokenizer_files(folder)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    is_plain = backend.truncation is None and backend.padding is None
    is_plain = is_plain and backend.post_processor is not None
    if not is_plain or backend.get_vocab_size() > MOST_TOKENS:
        return None
    if not knows_as_special(backend, named_tokens(folder)):
        return None
    return LazyTokenizer(backend, eos_token, lambda: load_tokenizer(folder))


def knows_as_special(backend: Tokenizer, tokens: Iterable[str]) -> bool:
    """Whether all these tokens are already special tokens; `transformers` would add the others."""
    added = backend.get_added_tokens_decoder().values()
    return {token.content for token in added if token.special}.issuperset(tokens)
