"""The second backend: the library xgrammar, which vLLM uses by default.

It runs behind the same strict reading of the constraint as `native`, since it drops many keywords
of JSON Schema in silence. And it is given `native`'s vocabulary: made from the tokenizer by itself,
it would let special tokens through as text.

Source: vllm/v1/structured_output/backend_xgrammar.py#L35-L128 (XgrammarBackend) @ v0.22.1
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.extras import from_extra
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.lark import as_ebnf
from mini_vllm.structured_output.native import read_constraint
from mini_vllm.structured_output.references import PLAIN_REFERENCE, hoisted
from mini_vllm.structured_output.schema_algebra import TYPES
from mini_vllm.structured_output.structural_tag import (
    TOO_DEEP,
    for_xgrammar,
    read_structural_tag,
)
from mini_vllm.structured_output.token_index import TokenTable

MAX_CACHE_BYTES = 256 * 2**20
MAX_COMPILED = 4096
"""Grammars after which the library's cache is emptied. Its limit in bytes counts not all that it
keeps: some 10 KiB of each grammar stay, whatever was dropped for others.
"""
MAX_WHITESPACE = 20


def import_xgrammar() -> Any:
    """The library.

    Raises:
        ValueError: if it is not installed; names the command.
    """
    purpose = "backend='xgrammar' of structured_outputs_config"
    with from_extra("structured", purpose, "use backend='native'"):
        import xgrammar
    return xgrammar


class XgrammarGrammar(StructuredOutputGrammar):
    """A matcher of the library, with the promises of `StructuredOutputGrammar`."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.num_processed_tokens = 0

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        for index, token in enumerate(tokens):
            if self.matcher.is_terminated() or not self.matcher.accept_token(token):
                if index:
                    self.matcher.rollback(index)
                return False
        self.num_processed_tokens += len(tokens)
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        num_legal = 0
        for token in tokens:
            if self.matcher.is_terminated() or not self.matcher.accept_token(token):
                break
            num_legal += 1
        if num_legal:
            self.matcher.rollback(num_legal)
        return tokens[:num_legal]

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= self.num_processed_tokens:
            raise ValueError(
                f"cannot take {num_tokens} tokens back: {self.num_processed_tokens} were accepted"
            )
        if num_tokens:
            self.matcher.rollback(num_tokens)
            self.num_processed_tokens -= num_tokens

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        import torch

        words = np.asarray(bitmask)
        if self.matcher.is_terminated():
            words[batch_index] = 0
        else:
            self.matcher.fill_next_token_bitmask(torch.from_numpy(words), batch_index)

    def is_terminated(self) -> bool:
        return bool(self.matcher.is_terminated())

    def reset(self) -> None:
        self.matcher.reset()
        self.num_processed_tokens = 0


class XgrammarBackend(StructuredOutputBackend):
    """Compiles with xgrammar what our own reader has found enforceable.

    Args: as `native.NativeBackend`.
    """

    def __init__(
        self,
        tokens: TokenTable,
        stop_token_ids: Sequence[int],
        any_whitespace: bool = True,
        close_objects: bool = True,
    ) -> None:
        self.library = xgr = import_xgrammar()
        self.tokens = tokens
        self.any_whitespace = any_whitespace
        self.close_objects = close_objects
        # A token without text must have no bytes, or its name would be taken for its text.
        info = xgr.TokenizerInfo(
            tokens.texts,
            vocab_type=xgr.VocabType.RAW,
            vocab_size=tokens.vocab_size,
            stop_token_ids=list(stop_token_ids),
        )
        self._num_compiled = 0
        self.compiler = xgr.GrammarCompiler(info, max_threads=1, cache_limit_bytes=MAX_CACHE_BYTES)

    def compile_grammar(
        self, request_type: StructuredOutputOptions, grammar_spec: str
    ) -> XgrammarGrammar:
        check_supported(request_type, grammar_spec, self.close_objects)
        try:
            compiled = self._compile(request_type, grammar_spec)
        except Exception as error:  # the library has exceptions of its own
            reason = re.sub(r"^\[[\d:]+\] \S+: ", "", str(error).strip().splitlines()[-1])
            raise ValueError(
                f"xgrammar cannot compile this {request_type.value}: {reason}"
            ) from None
        self._num_compiled += 1
        if self._num_compiled % MAX_COMPILED == 0:
            self.compiler.clear_cache()
        return XgrammarGrammar(self.library.GrammarMatcher(compiled, max_rollback_tokens=-1))

    def _compile(self, kind: StructuredOutputOptions, spec: str) -> Any:
        if kind is StructuredOutputOptions.REGEX:
            return self.compiler.compile_regex(spec)
        if kind is StructuredOutputOptions.GRAMMAR:
            return self.compiler.compile_grammar(as_ebnf(spec))
        if kind is StructuredOutputOptions.STRUCTURAL_TAG:
            form = for_xgrammar(read_structural_tag(spec), lambda kind, part: None)
            return self.compiler.compile_structural_tag({"type": kind.value, "format": form})
        if kind is StructuredOutputOptions.CHOICE:
            choices = " | ".join(_quoted(choice) for choice in json.loads(spec))
            return self.compiler.compile_grammar(f"root ::= {choices}")
        layout: dict[str, Any] = {"any_whitespace": False, "separators": (",", ":")}
        if self.any_whitespace and kind is not StructuredOutputOptions.COMPACT_JSON:
            layout = {"any_whitespace": True, "max_whitespace_cnt": MAX_WHITESPACE}
        schema = '{"type": "object"}'
        if kind is not StructuredOutputOptions.JSON_OBJECT:
            schema = json.dumps(_plain_schema(spec))
        return self.compiler.compile_json_schema(schema, strict_mode=self.close_objects, **layout)

    def allocate_token_bitmask(self, max_num_seqs: int) -> Any:
        return self.library.allocate_token_bitmask(max_num_seqs, self.tokens.vocab_size)

    def destroy(self) -> None:
        self.compiler.clear_cache()


def check_supported(kind: StructuredOutputOptions, spec: str, close_objects: bool = True) -> None:
    """Refuse what xgrammar would weaken.

    Raises:
        ValueError: names the feature.
    """
    if kind is StructuredOutputOptions.GRAMMAR:
        as_ebnf(spec)
    elif kind is StructuredOutputOptions.STRUCTURAL_TAG:
        _check_structural_tag(spec, close_objects)
    else:
        read_constraint(kind, spec, close_objects=close_objects)
    if kind is StructuredOutputOptions.REGEX:
        _check_regex(spec)
    if kind in (StructuredOutputOptions.JSON, StructuredOutputOptions.COMPACT_JSON):
        _check_schema(_plain_schema(spec), "#", close_objects)


def _plain_schema(spec: str) -> dict[str, Any]:
    """A schema that it can follow; one that is true or false, too, as an object.

    Raises:
        ValueError: for false, which no text satisfies.
    """
    schema = json.loads(spec)
    if schema is False:
        raise ValueError("json is false, which no text satisfies; true allows every value")
    return {} if schema is True else hoisted(schema)


def _check_structural_tag(spec: str, close_objects: bool) -> None:
    """The schemas and expressions inside, each as if it stood alone."""

    def check(kind: str, part: Any) -> None:
        if kind == "regex":
            check_supported(StructuredOutputOptions.REGEX, str(part), close_objects)
        else:
            check_supported(StructuredOutputOptions.JSON, json.dumps(part), close_objects)

    try:
        for_xgrammar(read_structural_tag(spec), check)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


def _check_regex(pattern: str) -> None:
    """Its dot takes newlines, its \\s more than ASCII, its negated classes broken UTF-8, and it
    ignores what asks for an end of the text anywhere else."""
    for found in re.finditer(r"\\.|\[\^|[.^$]", pattern, re.DOTALL):
        feature, position = found[0], found.start()
        at_an_end = (feature, position) in (("^", 0), ("$", len(pattern) - 1))
        if not at_an_end and (feature[0] != "\\" or feature[1] in "sSDWAZ"):
            raise ValueError(
                f"regex {pattern!r} has {feature} at position {position}, which 'xgrammar' reads "
                "otherwise than Python's re; use backend='native'"
            )


_ENFORCED = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    # With a length its strings take raw control characters and no escapes: text that is no JSON.
    "string": set(),
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
}
_PLAIN = {"title", "description", "default", "examples", "$schema", "$defs", "definitions"}
_PLAIN |= {"propertyNames"}  # that are read say nothing


def _check_schema(schema: Any, place: str, close_objects: bool) -> None:
    """Only keywords that it enforces, beside a single type; or a $ref, anyOf, enum or const alone.

    What stands beside one of those is ignored, a type too.
    """
    if isinstance(schema, bool):
        return
    keywords = set(schema) - _PLAIN
    for alone in ("$ref", "anyOf", "enum", "const"):
        if alone in keywords:
            keywords.remove(alone)
            if alone in ("enum", "const") and _is_said_by_values(schema):
                keywords.discard("type")
            break
    else:
        if isinstance(kind := schema.get("type", ""), str):
            keywords -= {"type"} | _ENFORCED.get(kind, set())
    if not PLAIN_REFERENCE.fullmatch(schema.get("$ref", "#")):
        keywords.add("$ref")  # to a place that is not looked at below
    properties = schema.get("properties", {})
    if not set(schema.get("required", [])) <= properties.keys():
        keywords.add("required")  # it enforces only those of properties
    if properties and schema.get("additionalProperties", not close_objects) is not False:
        keywords.add("additionalProperties")  # a name of properties, written with escapes, is one
    if keywords:
        raise ValueError(
            f"{place}: {min(keywords)} is not surely enforced by 'xgrammar'; use backend='native'"
        )
    for key in ("properties", "$defs", "definitions"):
        for name, part in schema.get(key, {}).items():
            _check_schema(part, f"{place}/{key}/{name}", close_objects)
    parts = [*schema.get("anyOf", []), *schema.get("prefixItems", [])]
    parts += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for part in parts:
        _check_schema(part, place, close_objects)


def _is_said_by_values(schema: dict[str, Any]) -> bool:
    """Whether the type beside an enum or const forbids none of its values."""
    types = schema.get("type", [])
    values = schema.get("enum", [schema.get("const")])
    return all(
        any(TYPES[name](value) for name in ([types] if isinstance(types, str) else types))
        for value in values
    )


def _quoted(choice: str) -> str:
    """A literal of its grammars; control characters must be escaped."""
    escaped = choice.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
