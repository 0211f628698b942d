"""Structural tags: free text with constrained parts between tags.

::

    {"type": "triggered_tags", "triggers": ["<f="], "tags": [{"type": "tag",
     "begin": "<f=now>", "content": {"type": "json_schema", ...}, "end": "</f>"}]}

    It is late. <f=now>{"zone": "UTC"}</f> So ...        after "<f=" one of the tags must follow

A format is a tree of formats, and each becomes a pattern. Free text becomes an automaton of its own
(Aho and Corasick): its states are the prefixes of the strings that it searches for. Each state is a
rule that reads one character and calls the rule of the next state. The rules of embedded schemas,
expressions and grammars get a prefix, so that no two have the same name.

Source: xgrammar's documentation of structural tags, which vLLM passes on to it. The older form with
`structures` and `triggers` is vLLM's, vllm/entrypoints/openai/engine/protocol.py#L126-L143
(LegacyStructuralTag) @ v0.22.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mini_vllm.extras import install_command
from mini_vllm.structured_output.ebnf import parse_grammar
from mini_vllm.structured_output.json_schema import compile_schema
from mini_vllm.structured_output.lark import as_ebnf
from mini_vllm.structured_output.patterns import (
    EMPTY,
    Call,
    Pattern,
    Repeat,
    Rules,
    Union,
    any_but,
    chars,
    concat,
    mapped,
    optional,
    parse_regex,
)
from mini_vllm.structured_output.references import MAX_NESTING, hoisted, nests_deeper

MAX_SOUGHT = 1_000
"""Most characters of all strings that one free text searches for; each becomes a state."""
TOO_DEEP = f"structural_tag nests too deeply, at most {MAX_NESTING} levels"
NEEDS_LIBRARY = frozenset(
    "token exclude_token any_tokens token_triggered_tags token_dispatch qwen_xml_parameter".split()
)
"""Formats of single tokens, or of one model's XML: only xgrammar has them."""
_MISSING: Any = object()


class NeedsXgrammar(ValueError):
    """A format that only xgrammar supports."""


def read_structural_tag(spec: str) -> dict[str, Any]:
    """The format of a structural tag, which may be of the newer or the older form.

    Raises:
        ValueError: for a text that is not a JSON object of one of the forms.
    """
    try:
        tag = json.loads(spec)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except ValueError as error:
        raise ValueError(f"structural_tag is no valid JSON: {error}") from None
    if nests_deeper(tag, MAX_NESTING):
        raise ValueError(TOO_DEEP)
    if not isinstance(tag, dict) or tag.get("type", "structural_tag") != "structural_tag":
        raise ValueError('structural_tag must be {"type": "structural_tag", "format": {...}}')
    if "structures" not in tag:
        return _field(tag, "format", dict, "structural_tag")
    structures = _field(tag, "structures", list, "structural_tag")
    tags = []
    for index, structure in enumerate(structures):
        place = f"structures[{index}]"
        schema = _field(structure, "schema", (dict, bool, str), place)
        if isinstance(schema, str):
            schema = json.loads(schema)
        tags.append(
            {
                "type": "tag",
                "begin": _field(structure, "begin", str, place),
                "content": {"type": "json_schema", "json_schema": schema},
                "end": _field(structure, "end", str, place),
            }
        )
    triggers = _field(tag, "triggers", list, "structural_tag")
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


def compile_structural_tag(
    spec: str, any_whitespace: bool = True, close_objects: bool = True
) -> Rules:
    """The rules of a structural tag.

    Args:
        spec: the JSON of a structural tag.
        any_whitespace, close_objects: of the schemas inside; see `json_schema.compile_schema`.

    Raises:
        NeedsXgrammar: for formats of single tokens and styles of XML.
        ValueError: with the place, for anything that is not a format.
    """
    form = read_structural_tag(spec)
    compiler = _Compiler(lambda schema: compile_schema(schema, any_whitespace, close_objects))
    try:
        compiler.rules["root"] = compiler.pattern(form, "format", ())
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    return compiler.rules


def for_xgrammar(
    form: Any, plain_ebnf: Callable[[str, str], str], check: Callable[[Any], None]
) -> Any:
    """A format as xgrammar reads it: schemas without long paths, and grammars as plain EBNF.

    Args:
        plain_ebnf: gives the EBNF of "grammar" or "regex" and each text of that kind.
        check: called with each schema.
    """
    if isinstance(form, list):
        return [for_xgrammar(part, plain_ebnf, check) for part in form]
    if not isinstance(form, dict):
        return form
    kind = form.get("type")
    if kind in ("json_schema", "qwen_xml_parameter"):
        schema = form.get("json_schema")
        check(schema)
        return form | {"json_schema": hoisted(schema) if isinstance(schema, dict) else schema}
    if kind in ("grammar", "regex"):
        text = _field(form, {"grammar": "grammar", "regex": "pattern"}[kind], str, kind)
        return {"type": "grammar", "grammar": plain_ebnf(kind, text)}
    return {key: for_xgrammar(part, plain_ebnf, check) for key, part in form.items()}


class _Compiler:
    """Turns formats into patterns, and collects the rules that these call.

    `until` has the end strings of the enclosing tag, which free text inside it must not contain.
    """

    def __init__(self, compile_json: Callable[[Any], Rules]) -> None:
        self.rules: Rules = {}
        self._compile_json = compile_json
        self._embedded: dict[str, Pattern] = {}

    def pattern(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        kind = _field(form, "type", str, place)
        if kind in NEEDS_LIBRARY:
            raise _needs_library(place, f"the format {kind!r}")
        known: dict[str, Callable[[Any, str, Sequence[str]], Pattern]] = {
            "const_string": lambda form, place, _: concat(_field(form, "value", str, place)),
            "json_schema": self.schema, "grammar": self.grammar, "regex": self.regex,
            "any_text": self.any_text, "sequence": self.sequence, "or": self.choice,
            "optional": lambda *where: optional(self.content(*where)),
            "plus": lambda *where: Repeat(self.content(*where), 1, None),
            "star": lambda *where: Repeat(self.content(*where), 0, None),
            "repeat": self.repeat, "tag": self.tag, "triggered_tags": self.triggered_tags,
            "tags_with_separator": self.tags_with_separator, "dispatch": self.dispatch,
        }  # fmt: skip
        if kind not in known:
            raise ValueError(f"{place} has type {kind!r}; the formats are {', '.join(known)}")
        return known[kind](form, place, until)

    # ------------------------------------------------------------ parts with a form of their own
    def schema(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        if form.get("style", "json") != "json":
            raise _needs_library(place, f"the style {form['style']!r}")
        if form.get("any_order"):
            raise _needs_library(place, "any_order")
        schema = _field(form, "json_schema", (dict, bool), place)
        return self._embed(json.dumps(schema), place, lambda: self._compile_json(schema))

    def grammar(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        text = _field(form, "grammar", str, place)
        return self._embed(f"grammar {text}", place, lambda: parse_grammar(as_ebnf(text)))

    def regex(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        text = _field(form, "pattern", str, place)
        return self._embed(f"regex {text}", place, lambda: {"root": parse_regex(text)})

    def _embed(self, key: str, place: str, compile_it: Callable[[], Rules]) -> Pattern:
        """A call of the root of embedded rules; rules with equal keys are embedded once."""
        if key not in self._embedded:
            try:
                rules = compile_it()
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            prefix = f"{len(self._embedded)}:"
            for name, part in rules.items():
                self.rules[prefix + name] = mapped(
                    part,
                    lambda leaf: Call(prefix + leaf.rule) if isinstance(leaf, Call) else leaf,
                )
            self._embedded[key] = Call(f"{prefix}root")
        return self._embedded[key]

    # ------------------------------------------------------------ larger structures
    def content(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        return self.pattern(_field(form, "content", dict, place), f"{place}.content", until)

    def elements(self, form: Any, place: str, until: Sequence[str]) -> list[Pattern]:
        parts = _field(form, "elements", list, place)
        return [self.pattern(p, f"{place}.elements[{i}]", until) for i, p in enumerate(parts)]

    def sequence(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        return concat(*self.elements(form, place, until))

    def choice(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        return Union(tuple(self.elements(form, place, until)))

    def repeat(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        low, high = _field(form, "min", int, place), _field(form, "max", int, place)
        if low < 0 or -1 != high < low:
            raise ValueError(f"{place} repeats from {low} to {high} times; -1 is without a limit")
        return Repeat(self.content(form, place, until), low, None if high == -1 else high)

    # ------------------------------------------------------------ tags
    def tag(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        return concat(_string(form, "begin", place), self._behind(form, place))

    def _behind(self, form: Any, place: str) -> Pattern:
        """The content and the end of a tag."""
        if isinstance(form.get("end"), list):
            ends = _strings(form, "end", place)
        else:
            ends = [_string(form, "end", place)]
        content = self.content(form, place, [end for end in ends if end])
        return concat(content, Union(tuple(concat(end) for end in ends)))

    def tags(self, form: Any, place: str) -> list[tuple[str, Pattern]]:
        """For each tag its `begin`, and the pattern of what follows."""
        tags = []
        for index, tag in enumerate(_field(form, "tags", list, place)):
            where = f"{place}.tags[{index}]"
            begin = _string(tag, "begin", where)
            tags.append((begin, self._behind(tag, where)))
        if not tags:
            raise ValueError(f"{place} has no tags; name at least one")
        return tags

    def triggered_tags(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        triggers, tags = _strings(form, "triggers", place), self.tags(form, place)
        behind: dict[str, list[Pattern]] = {trigger: [] for trigger in triggers}
        for begin, rest in tags:
            found = [trigger for trigger in behind if trigger and begin.startswith(trigger)]
            if len(found) != 1:
                raise ValueError(
                    f"{place} has a tag that begins with {begin!r}; exactly one of its triggers "
                    f"must be its beginning, and {len(found)} are; they are {triggers}"
                )
            behind[found[0]].append(concat(begin[len(found[0]) :], rest))
        sought = {trigger: Union(tuple(rests)) for trigger, rests in behind.items()}
        once, first = form.get("stop_after_first"), form.get("at_least_one")
        one_tag = Union(tuple(concat(begin, rest) for begin, rest in tags))
        if once and first:
            return one_tag
        excludes = [*_strings(form, "excludes", place, []), *until]
        text = self.text(place, sought, excludes, loops=not once)
        return concat(one_tag, text) if first else text

    def tags_with_separator(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        one_tag = Union(tuple(concat(begin, rest) for begin, rest in self.tags(form, place)))
        separator = _field(form, "separator", str, place)
        more = (
            EMPTY if form.get("stop_after_first") else Repeat(concat(separator, one_tag), 0, None)
        )
        tags = concat(one_tag, more)
        return tags if form.get("at_least_one") else optional(tags)

    # ------------------------------------------------------------ free text
    def any_text(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        for name in ("max_tokens", "max_chars"):
            if form.get(name) is not None:
                raise _needs_library(place, name)
        return self.text(place, {}, [*_strings(form, "excludes", place, []), *until])

    def dispatch(self, form: Any, place: str, until: Sequence[str]) -> Pattern:
        sought: dict[str, Pattern] = {}
        for index, rule in enumerate(_field(form, "rules", list, place)):
            where = f"{place}.rules[{index}]"
            if not isinstance(rule, list) or len(rule) != 2 or not isinstance(rule[0], str):
                raise ValueError(f"{where} must be a string and a format, in a list")
            sought[rule[0]] = self.pattern(rule[1], where, until)
        excludes = [*_strings(form, "excludes", place, []), *until]
        return self.text(place, sought, excludes, loops=form.get("loop", True))

    def text(
        self,
        place: str,
        sought: Mapping[str, Pattern],
        excludes: Sequence[str],
        loops: bool = True,
    ) -> Pattern:
        """Free text that contains no string of `excludes`, and where each string of `sought` is
        followed by its pattern.

        Args:
            loops: whether free text may follow after such a pattern; otherwise it ends there.
        """
        strings = [*sought, *excludes]
        if sum(map(len, strings)) > MAX_SOUGHT or "" in strings:
            raise ValueError(
                f"{place} searches for {len(strings)} strings of {sum(map(len, strings)):,} "
                f"characters; each must have at least 1, and all at most {MAX_SOUGHT:,}"
            )
        nodes = sorted({string[:n] for string in strings for n in range(len(string) + 1)} | {""})
        back = _links_back(nodes)
        names = {node: f"{place}/text/{number}" for number, node in enumerate(nodes)}
        following: dict[str, set[str]] = {node: set() for node in nodes}
        for node in sorted(nodes, key=len):
            if node:
                following[node[:-1]].add(node[-1])
        for node in sorted(nodes, key=len):  # a shorter suffix may be continued, too
            following[node] |= following[back[node]]
        for node in nodes:
            choices: list[Pattern] = [EMPTY]
            for char in sorted(following[node]):
                chain = _endings(node, char, back)
                if any(ending in excludes for ending in chain):
                    continue
                found = next((ending for ending in chain if ending in sought), None)
                move: Pattern = Call(names[chain[0]])
                if found is not None:
                    move = concat(sought[found], Call(names[""]) if loops else EMPTY)
                choices.append(concat(chars([(ord(char), ord(char))]), move))
            elsewhere = any_but([(ord(char), ord(char)) for char in following[node]])
            choices.append(concat(elsewhere, Call(names[""])))
            self.rules[names[node]] = Union(tuple(choices))
        return Call(names[""])


def _links_back(nodes: Sequence[str]) -> dict[str, str]:
    """For each node the longest proper suffix of it that is a node."""
    back = {"": ""}
    known = set(nodes)
    for node in sorted(known - {""}, key=len):
        ending = back[node[:-1]] if len(node) > 1 else ""
        while ending and ending + node[-1] not in known:
            ending = back[ending]
        longer = ending + node[-1]
        back[node] = longer if len(node) > 1 and longer in known else ""
    return back


def _endings(node: str, char: str, back: Mapping[str, str]) -> list[str]:
    """The nodes that are suffixes of `node + char`, the longest first."""
    while node and node + char not in back:
        node = back[node]
    ending = node + char if node + char in back else ""
    endings = [ending]
    while endings[-1]:
        endings.append(back[endings[-1]])
    return endings


def _field(form: Any, name: str, kind: Any, place: str, default: Any = _MISSING) -> Any:
    value = form.get(name, default) if isinstance(form, dict) else _MISSING
    if value is _MISSING or not isinstance(value, kind) or (kind is int and value is True):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        wanted = " or ".join({dict: "object", str: "string", list: "list", int: "whole number",
                              bool: "true or false"}[one] for one in kinds)  # fmt: skip
        found = "is missing" if value is _MISSING else f"is {json.dumps(value)[:60]}"
        raise ValueError(f"{place}: {name} {found}; it must be of type {wanted}")
    return value


def _string(form: Any, name: str, place: str) -> str:
    value = form.get(name) if isinstance(form, dict) else None
    if isinstance(value, dict) and value.get("type") == "token":
        raise _needs_library(place, f"a token as {name}")
    text: str = _field(form, name, str, place)
    return text


def _strings(form: Any, name: str, place: str, default: Any = _MISSING) -> list[str]:
    values: list[str] = _field(form, name, list, place, default)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{place}: {name} must be a list of strings")
    return values


def _needs_library(place: str, what: str) -> NeedsXgrammar:
    return NeedsXgrammar(
        f"{place}: {what} is supported by xgrammar only; run: {install_command('structured')}, "
        "and leave structured_outputs_config's backend at 'auto', or set it to 'xgrammar'"
    )
