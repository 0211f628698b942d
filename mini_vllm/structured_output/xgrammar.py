"""The second backend: the library xgrammar, which vLLM uses by default.

Constraints are first checked as strictly as for `native`, because the library silently ignores many
keywords of JSON Schema. It also gets the vocabulary of `native`: the one that it makes from a
tokenizer itself would allow special tokens as text.

Source: vllm/v1/structured_output/backend_xgrammar.py#L35-L128 (XgrammarBackend) @ v0.22.1
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_vllm.extras import from_extra
from mini_vllm.structured_output.backend_types import (
    StructuredOutputBackend,
    StructuredOutputGrammar,
    StructuredOutputOptions,
)
from mini_vllm.structured_output.ebnf import parse_grammar, written_as_ebnf
from mini_vllm.structured_output.lark import as_ebnf
from mini_vllm.structured_output.native import read_constraint
from mini_vllm.structured_output.patterns import (
    ANCHORS,
    EMPTY,
    Call,
    Concat,
    Repeat,
    Rules,
    parse_regex,
)
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
"""The library's cache is emptied after this many grammars. Its limit in bytes does not count all of
its memory: about 10 KiB of each grammar stay even after the cache has dropped it.
"""
MAX_WHITESPACE = 20
MAX_SECONDS = 1.0
"""Most processor time for the legal tokens of one place. With a grammar that has more ways to read
a text the longer it gets, each token may take twice as long as the one before, and all requests
wait for it."""


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
    """A matcher of the library as a `StructuredOutputGrammar`."""

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
            return
        begin = time.thread_time()
        self.matcher.fill_next_token_bitmask(torch.from_numpy(words), batch_index)
        if (seconds := time.thread_time() - begin) > MAX_SECONDS:
            raise ValueError(
                f"the grammar is too ambiguous: the legal tokens behind {self.num_processed_tokens}"
                f" tokens took {seconds:.1f} s (limit: {MAX_SECONDS:g} s); give each text one way "
                "to be read"
            )

    def is_terminated(self) -> bool:
        return bool(self.matcher.is_terminated())

    def reset(self) -> None:
        self.matcher.reset()
        self.num_processed_tokens = 0


class XgrammarBackend(StructuredOutputBackend):
    """Compiles constraints with xgrammar, after our own parser has checked them.

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
        # A token without text must have no bytes, or its name would be read as its text.
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
        except Exception as error:  # the library raises its own types
            reason = re.sub(r"^\[[\d:]+\] \S+: ", "", str(error).strip().splitlines()[-1])
            raise ValueError(
                f"xgrammar cannot compile this {request_type.value}: {reason}"
            ) from None
        self._num_compiled += 1
        if self._num_compiled % MAX_COMPILED == 0:
            self.compiler.clear_cache()
        return XgrammarGrammar(self.library.GrammarMatcher(compiled, max_rollback_tokens=-1))

    def _compile(self, kind: StructuredOutputOptions, spec: str) -> Any:
        if kind in (StructuredOutputOptions.REGEX, StructuredOutputOptions.GRAMMAR):
            return self.compiler.compile_grammar(plain_ebnf(kind.value, spec))
        if kind is StructuredOutputOptions.STRUCTURAL_TAG:
            form = for_xgrammar(read_structural_tag(spec), plain_ebnf, lambda schema: None)
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
    """Refuse constraints that xgrammar would not enforce exactly.

    Raises:
        ValueError: names the feature.
    """
    if kind in (StructuredOutputOptions.REGEX, StructuredOutputOptions.GRAMMAR):
        plain_ebnf(kind.value, spec)
    elif kind is StructuredOutputOptions.STRUCTURAL_TAG:
        _check_structural_tag(spec, close_objects)
    else:
        read_constraint(kind, spec, close_objects=close_objects)
    if kind in (StructuredOutputOptions.JSON, StructuredOutputOptions.COMPACT_JSON):
        _check_schema(_plain_schema(spec), "#", close_objects)


def plain_ebnf(kind: str, spec: str) -> str:
    """A grammar or regular expression, written out from what our own parser has read.

    The library reads some texts differently: hex and octal escapes, ``\\^`` in a class, dots, \\s,
    and negated classes. In this notation each character is itself or eight hex digits.

    Args:
        kind: "grammar" or "regex".

    Raises:
        ValueError: names what cannot be read, or what the library cannot enforce.
    """
    if kind == "grammar":
        rules = parse_grammar(as_ebnf(spec))
        _check_rules(rules)
        return "\n".join(f"{name} ::= {written_as_ebnf(part)}" for name, part in rules.items())
    read = parse_regex(spec)
    parts = [*read.parts] if isinstance(read, Concat) else [read]
    while parts[:1] == [ANCHORS[0]]:
        del parts[0]
    while parts[-1:] == [ANCHORS[1]]:
        del parts[-1]
    try:
        return f"root ::= {written_as_ebnf(Concat(tuple(parts)))}"
    except ValueError as error:
        raise ValueError(f"regex {spec!r} {error}, or use backend='native'") from None


def _check_rules(rules: Rules) -> None:
    """Refuse a rule that is only itself, repeated: the library's process would end.

    ``b ::= b{0,1}`` overflows its stack, and so does a circle of such rules.
    """
    only: dict[str, str] = {}  # rules that are one other rule, repeated
    for name, pattern in rules.items():
        parts = [pattern]
        while len(parts) == 1 and isinstance(pattern := parts[0], Repeat | Concat):
            inside = (pattern.part,) if isinstance(pattern, Repeat) else pattern.parts
            parts = [part for part in inside if part != EMPTY]
        if isinstance(pattern, Call):
            only[name] = pattern.rule
    for name in only:
        called = name
        for _ in only:
            called = only.get(called, "")
            if called == name:
                raise ValueError(
                    f"rule {name!r} consists of itself alone, so it adds no text; remove it"
                )


def _plain_schema(spec: str) -> dict[str, Any]:
    """A schema in the form that xgrammar reads: an object, also for `true`.

    Raises:
        ValueError: for `false`, which no text satisfies.
    """
    schema = json.loads(spec)
    if schema is False:
        raise ValueError("json is false, which no text satisfies; true allows every value")
    return {} if schema is True else hoisted(schema)


def _check_structural_tag(spec: str, close_objects: bool) -> None:
    """Check each embedded grammar, expression and schema as a constraint of its own."""

    def check(schema: Any) -> None:
        check_supported(StructuredOutputOptions.JSON, json.dumps(schema), close_objects)

    try:
        for_xgrammar(read_structural_tag(spec), plain_ebnf, check)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None


_ENFORCED = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    # With a length its strings accept raw control characters and no escapes, which is not JSON.
    "string": set(),
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "number": set(),
    "boolean": set(),
    "null": set(),
}
_PLAIN = {"title", "description", "default", "examples", "$schema", "$defs", "definitions"}
_PLAIN |= {"propertyNames"}  # `check_syntax` accepts only those that restrict nothing


def _check_schema(schema: Any, place: str, close_objects: bool) -> None:
    """Accept only keywords that xgrammar enforces, with a single type; or $ref, anyOf, enum or
    const alone, because it ignores all keywords beside one of those, also the type."""
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
        keywords.add("$ref")  # its target is not checked below
    if close_objects and "items" not in schema and _ENFORCED["array"] & schema.keys():
        keywords.add("items")  # it closes such arrays, too
    properties = schema.get("properties", {})
    if not set(schema.get("required", [])) <= properties.keys():
        keywords.add("required")  # enforced only for names in `properties`
    if properties and schema.get("additionalProperties", not close_objects) is not False:
        keywords.add("additionalProperties")  # it takes a known name written with escapes for one
    if keywords:
        raise ValueError(
            f"{place}: {min(keywords)} may not be enforced by 'xgrammar'; use backend='native'"
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
    """A literal in xgrammar's notation; control characters must be escaped."""
    escaped = choice.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
