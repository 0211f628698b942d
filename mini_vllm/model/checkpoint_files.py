"""The other files of a checkpoint folder, checked before a library reads them.

For a damaged file the libraries raise exceptions of any type. Here each fault is a ValueError that
names the file, the entry, its value and the allowed values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from mini_vllm.errors import show
from mini_vllm.gguf import is_gguf, read_gguf
from mini_vllm.json_files import read_json
from mini_vllm.model.config_rules import (
    NUMBER,
    OBJECT,
    STRING,
    Rule,
    check_entries,
    is_integer,
    list_of,
)
from mini_vllm.model.gguf import tokenizer as gguf_tokenizer

TOKENIZER = {
    "model": Rule(OBJECT.legal, "it must be an object with the tokenizer's vocabulary", True),
    "added_tokens": list_of(OBJECT, "objects").or_null(),
}
TOKENIZER_MODEL = {
    "vocab": Rule(
        lambda value: bool(value) and isinstance(value, dict | list),
        "it must be an object with an id for each token, or a list of tokens with their scores",
        True,
    ),
    "merges": list_of(Rule(lambda value: len(_merged(value)) == 2, "a pair"), "pairs of tokens"),
    "continuing_subword_prefix": STRING.or_null(),
}
TOKENIZER_CONFIG = {"model_max_length": NUMBER.or_null()}


def check_weight_map(weight_map: Any, index: Path) -> dict[str, str]:
    """The `weight_map` of a `model.safetensors.index.json`: the file name of each tensor.

    Raises ValueError if it is not a map of names, or names a file outside its folder.
    """
    if not isinstance(weight_map, dict):
        raise ValueError(
            f"{index}: weight_map is {show(weight_map)}; it must be an object with the file name "
            "of each tensor"
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or PurePosixPath(file).name != file:
            raise ValueError(
                f"{index}: weight_map[{show(name)}] is {show(file)}; it must be the name of a "
                "file in the same folder"
            )
    return weight_map


def check_tokenizer_files(folder: Path) -> None:
    """Raise ValueError for a `tokenizer.json` or `tokenizer_config.json` that cannot be one.

    Only faults are checked here that the library accepts or crashes on; it refuses the others.
    """
    config = folder / "tokenizer_config.json"
    if config.is_file():
        check_entries(read_json(config), TOKENIZER_CONFIG, str(config))
    path = folder / "tokenizer.json"
    if not path.is_file():
        return
    tokenizer = read_json(path)
    check_entries(tokenizer, TOKENIZER, str(path))
    model = tokenizer["model"]
    check_entries(model, TOKENIZER_MODEL, str(path), prefix="model.")
    prefix = model.get("continuing_subword_prefix")
    for merge in model.get("merges", ()) if prefix else ():
        if not _merged(merge)[1].startswith(prefix):
            raise ValueError(
                f"{path}: model.continuing_subword_prefix is {show(prefix)}; the second part of "
                f"every merge must begin with it, and that of {show(merge)} does not"
            )


def _merged(merge: Any) -> list[str]:
    """The two tokens of a merge, which old files write as one string; [] if it is not a pair."""
    pair = merge.split(" ") if isinstance(merge, str) else merge
    is_pair = isinstance(pair, list) and len(pair) == 2 and all(isinstance(t, str) for t in pair)
    return pair if is_pair else []


def load_tokenizer(folder: str | Path) -> Any:
    """The tokenizer of a folder or a GGUF file, of the `transformers` kind; no hub is used.

    A multimodal model may have its chat template in a processor file, which the library's
    tokenizer does not read. It becomes `processor_chat_template`, and also `chat_template` if the
    tokenizer has none of its own.

    Raises ValueError that names the folder and the fault, for every exception of the library.
    """
    try:
        if is_gguf(folder):
            return gguf_tokenizer.load_tokenizer(read_gguf(folder))
        from transformers import AutoTokenizer  # takes a second, so only when needed

        _check_readable(Path(folder))
        check_tokenizer_files(Path(folder))
        # Without an answer about foreign code, the library asks on the terminal and waits.
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        _check_vocabulary(tokenizer, Path(folder))
        template = read_processor_template(Path(folder))
        tokenizer.chat_template = tokenizer.chat_template or template
        tokenizer.processor_chat_template = template if has_processor(Path(folder)) else None
        return tokenizer
    except Exception as error:  # the library promises none in particular
        raise ValueError(
            f"no tokenizer could be loaded from {folder}: {_describe(error)}; pass "
            "tokenizer=FOLDER, or skip_tokenizer_init=True to work on token ids"
        ) from error


def _check_readable(folder: Path) -> None:
    """Raises ValueError for a folder whose tokenizer the library cannot load for a reason that it
    does not name: no vocabulary, half of one, a missing package, or code in the folder."""
    if not any((folder / name).is_file() for name in (WHOLE, *SENTENCEPIECE, *SLOW)):
        others = [each.name for each in folder.glob("*") if each.name.endswith(OTHERS)]
        hint = f"; {min(others)} is not read" if others else ""
        raise ValueError(f"the folder has none of {WHOLE}, {SENTENCEPIECE[0]}, {SLOW[0]}{hint}")
    is_pair = (folder / "vocab.json").is_file() and not (folder / WHOLE).is_file()
    if is_pair and not (folder / "merges.txt").is_file():
        raise ValueError("it has vocab.json and no merges.txt beside it; download that, too")
    config = folder / "tokenizer_config.json"
    entries = read_json(config) if config.is_file() else {}
    code = entries.get("auto_map")
    if isinstance(code, dict) and code.get("AutoTokenizer"):
        raise ValueError(
            f"{config}: auto_map says that the tokenizer is Python code in the folder, which is "
            f"not run here; with a {WHOLE}, take the entry out"
        )
    found = [name for name in SENTENCEPIECE if (folder / name).is_file()]
    if not found or (folder / WHOLE).is_file():
        return
    if not any(find_spec(package) for package in ("sentencepiece", "tiktoken")):
        raise ValueError(
            f"it has {found[0]} and no {WHOLE}; the package sentencepiece reads it, and is not "
            "installed; run: pip install sentencepiece protobuf"
        )


WHOLE = "tokenizer.json"
SLOW = ("vocab.json", "vocab.txt", "spm.model", "tokenizer.vocab")
OTHERS = (".tiktoken", "tekken.json")
"""Vocabularies of other libraries."""
SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def _check_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Raises ValueError if the folder has no tokenizer file. The library would then choose a class
    by `config.json` and make a tokenizer with an empty vocabulary. Every class accepts a
    `tokenizer.json`, also GPT-2's, which does not list it."""
    names = sorted({WHOLE, *tokenizer.vocab_files_names.values()})
    if names and not any((folder / name).is_file() for name in names):
        raise ValueError(f"the folder has none of {', '.join(names)}")


def has_processor(folder: Path) -> bool:
    """Whether the folder has a processor, so that the model takes more than text."""
    return any((folder / f"{name}.json").is_file() for name in ("preprocessor_config", PROCESSOR))


def read_processor_template(folder: Path) -> str | None:
    """The chat template in a file that only the model's processor reads; None if there is none.

    `chat_template.jinja` and `additional_chat_templates` are also read by the tokenizer. The order
    is that of `ProcessorMixin.get_processor_dict` of transformers.

    Raises ValueError that names the file, for a template that is not a string.
    """
    for name in (PROCESSOR, "chat_template"):
        file = folder / f"{name}.json"
        template = read_json(file).get("chat_template") if file.is_file() else None
        if not isinstance(template, str | None):
            raise ValueError(f"{file}: chat_template is {show(template)}; {STRING.says}")
        if template is not None:
            return template
    return None


PROCESSOR = "processor_config"


def read_eos_token_id(folder: str | Path) -> int | None:
    """The id of the EOS token that the tokenizer's files name; None if they name none.

    `transformers` may know an EOS token that the files do not name, but it takes seconds to import.
    So this is used where no tokenizer is loaded.
    """
    folder = Path(folder)
    files = [folder / name for name in ("tokenizer_config.json", "special_tokens_map.json")]
    entries = [read_json(file) for file in files if file.is_file()]
    named = (_text_of(each.get("eos_token")) for each in entries)
    token = next((text for text in named if text is not None), None)
    if token is None:
        return None
    for each in entries:
        for token_id, added in (each.get("added_tokens_decoder") or {}).items():
            if _text_of(added) == token and token_id.isdecimal():
                return int(token_id)
    path = folder / "tokenizer.json"
    tokenizer = read_json(path) if path.is_file() else {}
    for added in tokenizer.get("added_tokens") or ():
        if _text_of(added) == token and is_integer(added.get("id")):
            return int(added["id"])
    vocab = (tokenizer.get("model") or {}).get("vocab")
    return vocab.get(token) if isinstance(vocab, dict) else None


def _text_of(token: Any) -> str | None:
    """A token's text: files have it as a string, or as an object with its properties."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


@dataclass(frozen=True)
class Vocabulary:
    """The part of a tokenizer that grammar masks need, under the names of `transformers`."""

    words: Mapping[str, int]
    added_tokens_decoder: Mapping[int, Any]

    def get_vocab(self) -> Mapping[str, int]:
        return self.words

    @property
    def all_special_ids(self) -> list[int]:
        return [i for i, token in self.added_tokens_decoder.items() if token.special]


def load_vocabulary(folder: str | Path) -> Any:
    """A tokenizer's vocabulary, or the whole tokenizer.

    `transformers` takes seconds to import, and an engine in a separate process needs it for nothing
    else. So only `tokenizer.json` is read, unless other files name special tokens that it does not
    have: only the library knows how these are added.
    """
    folder = Path(folder)
    if is_gguf(folder):
        return gguf_vocabulary(folder)
    if not (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    from tokenizers import Tokenizer

    try:
        check_tokenizer_files(folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = Vocabulary(tokenizer.get_vocab(), tokenizer.get_added_tokens_decoder())
        special = {
            token.content for token in vocabulary.added_tokens_decoder.values() if token.special
        }
        if special.issuperset(named_tokens(folder)):
            return vocabulary
    except Exception:  # the library promises none in particular; `load_tokenizer` names the file
        pass
    return load_tokenizer(folder)


def gguf_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary of a GGUF file's tokenizer. Raises ValueError that names the key."""
    tokenizer = gguf_tokenizer.build_tokenizer(read_gguf(path))
    return Vocabulary(tokenizer.get_vocab(), tokenizer.get_added_tokens_decoder())


def named_tokens(folder: Path) -> Iterator[str]:
    """The tokens that the files beside `tokenizer.json` name."""
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if not (folder / name).is_file():
            continue
        entries = read_json(folder / name)
        if name == "added_tokens.json":
            yield from entries
            continue
        values = [value for key, value in entries.items() if key.endswith("_token")]
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = entries.get(key) or ()
            values += more.values() if isinstance(more, dict) else more
        values += (entries.get("added_tokens_decoder") or {}).values()
        for value in values:
            if (text := _text_of(value)) is not None:
                yield text


def _describe(error: Exception) -> str:
    """The message, with the type of the error if the message alone may say too little."""
    if isinstance(error, ValueError | OSError):
        return str(error)
    return f"{type(error).__name__}: {error}"
