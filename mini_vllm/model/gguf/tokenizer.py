"""The tokenizer that a GGUF file describes, built from its metadata with the `tokenizers` library.

    tokenizer.ggml.model       "gpt2": byte-level BPE, with merges       "llama": SentencePiece's
    tokenizer.ggml.pre         how a "gpt2" text is split before it is merged
    tokenizer.ggml.tokens      the vocabulary, by id; "llama" has `scores` instead of merges
    tokenizer.ggml.token_type  1 normal, 3 control, 4 user-defined, 6 a byte ...
    tokenizer.chat_template    Jinja

`transformers` can do this, too (`from_pretrained(folder, gguf_file=...)`), but it reads the file
slowly, and for an unknown `pre` it splits texts as GPT-2 does. Here an unknown `pre` is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mini_vllm.errors import show
from mini_vllm.gguf import Array, GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONTROL, USER_DEFINED = 3, 4
WORD_BORDER = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece writes for a space."""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS = r"\p{N}"
"""Splits off each digit, before the rest is split as for GPT-2."""

_KINDS: dict[tuple[str, ...], Sequence[str]] = {
    (GPT2,): ("default", "gpt-2", "gpt2", "olmo", "phi-2", "jina-es", "jina-de", "mpt"),
    (DIGITS, GPT2): ("smollm", "starcoder", "refact", "codeshell", "command-r", "exaone"),
    (LLAMA3,): (
        "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "dbrx", "smaug-bpe",
    ),
    (QWEN2,): ("qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan"),
    (TEKKEN,): ("tekken",),
    (GPT4O,): ("gpt-4o", "llama4", "kanana2"),
}  # fmt: skip
PRE_TOKENIZERS = {name: patterns for patterns, names in _KINDS.items() for name in names}
"""The patterns that split a text, applied in order, by `tokenizer.ggml.pre`."""
BEGINS_WITH_BOS = (
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    "tekken",
)  # fmt: skip
"""Kinds of "gpt2" that begin every text with a BOS token, and do not merge a word that is a token,
also if the file does not say so."""
NO_STRIP = ("<unk>", "<s>", "<|endoftext|>")
"""Phi-3's other control tokens also match the white space after them, which no entry says."""
NORMALISED = ("qwen2", "deepseek-r1-qwen", "megrez")
"""Kinds that normalise a text to Unicode's composed form (NFC) first."""
SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""Names in the tokenizer, and keys after `tokenizer.ggml.`."""


def load_tokenizer(file: GGUFFile) -> Any:
    """The tokenizer of the `transformers` kind, with its chat template.

    Raises ValueError that names the file, the key and what is allowed.
    """
    return wrap(file, build_tokenizer(file))


def wrap(file: GGUFFile, tokenizer: Tokenizer) -> Any:
    """The tokenizer of the `transformers` kind around the one that `build_tokenizer` gave."""
    from transformers import PreTrainedTokenizerFast  # takes a second, so only when needed

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        chat_template=chat_templates(file),
        **special_tokens(file, tokenizer),
    )


def special_tokens(file: GGUFFile, tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by their role."""
    named = {name: tokenizer.id_to_token(i) for name, i in special_ids(file).items()}
    return {name: token for name, token in named.items() if token is not None}


def chat_templates(file: GGUFFile) -> str | dict[str, str] | None:
    """The chat template; a dict by name if the file has several."""
    key = "tokenizer.chat_template"
    named = {k: v for k, v in file.metadata.items() if k.startswith(key) and isinstance(v, str)}
    if len(named) < 2:
        return file.get(key, str, "a text", None)
    return {k.removeprefix(key).lstrip(".") or "default": v for k, v in named.items()}


def special_ids(file: GGUFFile) -> dict[str, int]:
    """The ids of the special tokens by their role. Raises ValueError for an invalid id."""
    count = file.get("tokenizer.ggml.tokens", Array, "a list of texts").count
    found = {}
    for name, key in SPECIAL.items():
        key = f"tokenizer.ggml.{key}"
        token = file.get(key, int, "a token id", None)
        if token is not None and not 0 <= token < count:
            raise ValueError(
                f"{file.path}: {key} is {token}; it must be below {count}, the number of tokens"
            )
        if token is not None:
            found[name] = token
    return found


def build_tokenizer(file: GGUFFile) -> Tokenizer:
    """The tokenizer of the `tokenizers` kind.

    Raises ValueError that names the file, the key and what is allowed.
    """
    from tokenizers import processors

    kind = file.get("tokenizer.ggml.model", str, "'gpt2' or 'llama'")
    if kind not in ("gpt2", "llama"):
        raise ValueError(
            f"{file.path}: tokenizer.ggml.model is {show(kind)}; it must be 'gpt2' or 'llama'; "
            "pass tokenizer=FOLDER of the original model"
        )
    texts = file.read_list("tokenizer.ggml.tokens", str)
    types = _types(file, len(texts))
    tokenizer = _byte_level(file, texts, types) if kind == "gpt2" else _sentencepiece(file, texts)
    is_phi3 = kind == "llama" and file.metadata.get("general.architecture") == "phi3"
    _add_tokens(tokenizer, texts, types, is_phi3)
    by_default = kind == "llama" or file.metadata.get("tokenizer.ggml.pre") in BEGINS_WITH_BOS
    ids = special_ids(file)
    single = ["$A"]
    if _flag(file, "add_bos_token", by_default) and "bos_token" in ids:
        single.insert(0, texts[ids["bos_token"]])
    if _flag(file, "add_eos_token", False) and "eos_token" in ids:
        single.append(texts[ids["eos_token"]])
    named = [(token, tokenizer.token_to_id(token)) for token in single if token != "$A"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=[*single, "$B:1"], special_tokens=named
    )
    return tokenizer


def _flag(file: GGUFFile, name: str, default: bool) -> bool:
    return file.get(f"tokenizer.ggml.{name}", bool, "true or false", default)


def _types(file: GGUFFile, count: int) -> list[int]:
    """The type of each token; without an entry all are normal."""
    types = file.read_list("tokenizer.ggml.token_type", int, [1] * count)
    if len(types) != count:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.token_type has {len(types)} entries; it must have one "
            f"for each of the {count} tokens"
        )
    return types


def _byte_level(file: GGUFFile, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """BPE over the bytes of a text, each written as a visible character, as in GPT-2."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = file.get("tokenizer.ggml.pre", str, "a text", "default")
    if pre not in PRE_TOKENIZERS:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.pre is {show(pre)}; it must be one of "
            f"{', '.join(sorted(PRE_TOKENIZERS))}; pass tokenizer=FOLDER of the original model"
        )
    vocab = {token: index for index, token in enumerate(_spelled(tokens, types))}
    merges = [_pair(file, merge, vocab) for merge in file.read_list("tokenizer.ggml.merges", str)]
    takes_words = pre in BEGINS_WITH_BOS
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=takes_words))
    splits = [pre_tokenizers.Split(Regex(each), "isolated") for each in PRE_TOKENIZERS[pre]]
    space = _flag(file, "add_space_prefix", False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)]
    )
    if pre in NORMALISED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _spelled(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """The tokens; those that merges produce are in the alphabet of bytes, which some unused tokens
    of a file are not."""
    from tokenizers import pre_tokenizers

    alphabet, added = set(pre_tokenizers.ByteLevel.alphabet()), (CONTROL, USER_DEFINED)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [
        token
        if kind in added or alphabet.issuperset(token)
        else "".join(piece for piece, _ in byte_level.pre_tokenize_str(token))
        for token, kind in zip(tokens, types, strict=True)
    ]


def _pair(file: GGUFFile, merge: str, vocab: dict[str, int]) -> tuple[str, str]:
    """The two tokens of a merge. Raises ValueError unless they, and both together, are tokens."""
    left, space, right = merge.partition(" ")
    if not space or left not in vocab or right not in vocab or left + right not in vocab:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.merges has {show(merge)}; it must be two tokens with a "
            "space between them that make a third"
        )
    return left, right


def _sentencepiece(file: GGUFFile, tokens: Sequence[str]) -> Tokenizer:
    """BPE over characters; a character that is not a token is split into bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    arch = file.metadata.get("general.architecture")
    is_gemma = arch == "gemma3"
    if is_gemma:  # its file has tokens of several plain spaces
        tokens = [WORD_BORDER * len(t) if " " in t and not t.strip() else t for t in tokens]
    vocab = {token: index for index, token in enumerate(tokens)}
    if "tokenizer.ggml.merges" in file.metadata:
        merges = [
            _pair(file, merge, vocab) for merge in file.read_list("tokenizer.ggml.merges", str)
        ]
    else:  # Gemma's scores do not follow the order of its merges; its ids do
        count = len(tokens)
        scores = [-float(index) for index in range(count)] if is_gemma else _scores(file, count)
        merges = merges_of(tokens, scores)
    unknown = special_ids(file).get("unk_token")
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            fuse_unk=True,
            byte_fallback=True,
            unk_token=None if unknown is None else tokens[unknown],
        )
    )
    space = not is_gemma and _flag(file, "add_space_prefix", True)
    back = [decoders.Replace(WORD_BORDER, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, *([decoders.Strip(" ", 1)] if space else [])])
    to_border = normalizers.Replace(" ", WORD_BORDER)
    if is_gemma:
        tokenizer.normalizer = to_border
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    elif arch == "phi3":  # a space before a text, also before one that begins with a space
        before = [normalizers.Prepend(WORD_BORDER)] if space else []
        tokenizer.normalizer = normalizers.Sequence([*before, to_border])
    else:
        scheme = "first" if space else "never"
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=WORD_BORDER, prepend_scheme=scheme, split=False
        )
    return tokenizer


def _scores(file: GGUFFile, count: int) -> list[float]:
    scores = file.read_list("tokenizer.ggml.scores", float)
    if len(scores) != count:
        raise ValueError(
            f"{file.path}: tokenizer.ggml.scores has {len(scores)} entries; it must have one for "
            f"each of the {count} tokens"
        )
    return scores


def merges_of(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a vocabulary implies: each token made of two others, the best token first.

    If one token can be made in several ways, the way with the earliest tokens comes first.
    """
    index = {token: i for i, token in enumerate(tokens)}
    found = []
    for token, score in zip(tokens, scores, strict=True):
        cuts = ((token[:i], token[i:]) for i in range(1, len(token)))
        pairs = [pair for pair in cuts if pair[0] in index and pair[1] in index]
        pairs.sort(key=lambda pair: (index[pair[0]], index[pair[1]]))
        found += [(score, len(left), len(right), left, right) for left, right in pairs]
    found.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in found]


def _add_tokens(
    tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int], rstrip: bool
) -> None:
    """Let control tokens and user-defined tokens be matched whole in a text, without merges.

    Args:
        rstrip: they also match the white space after them, except those in :data:`NO_STRIP`.
    """
    from tokenizers import AddedToken

    tokenizer.add_tokens(
        [
            AddedToken(
                token,
                normalized=False,
                special=kind == CONTROL,
                rstrip=rstrip and token not in NO_STRIP,
            )
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED) and token
        ]
    )
