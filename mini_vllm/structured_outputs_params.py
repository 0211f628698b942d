"""Parameters of structured outputs, with vLLM's names. Imports no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.param_checks import check_list, unknown_names

_CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_bad = partial(bad_value, param="structured_outputs")


@dataclass
class StructuredOutputsParams:
    """The form that the text of a request must have; exactly one must be given.

    A text that ends with the model's end token has the form. A text that ends by ``max_tokens`` is
    the beginning of a text with the form.

    Attributes:
        json: a JSON schema, as a dict or as text.
        regex: a regular expression that the whole text matches, as with ``re.fullmatch`` and
            ``re.ASCII``.
        choice: the texts to choose from.
        grammar: rules in the notation of GBNF, or of Lark; see
            :func:`~mini_vllm.structured_output.ebnf.parse_grammar` and
            :func:`~mini_vllm.structured_output.lark.convert_lark_to_ebnf`.
        json_object: True for any JSON object.
        disable_any_whitespace: allow no white space between the parts of a `json` schema's text.
        disable_additional_properties: a parameter of vLLM; only False: use
            `structured_outputs_config` instead.
        whitespace_pattern: a parameter of vLLM; only None.
        structural_tag: free text with constrained parts, as a dict or its JSON text; see
            :func:`~mini_vllm.structured_output.structural_tag.compile_structural_tag`.
        reasoning_ended: with a reasoning parser: True if the form applies from the first token,
            False if it applies after the reasoning; None: it follows from the prompt. Set by the
            server.

    Raises:
        ValueError: if none or several are given, or for an invalid value.

    Source: vllm/sampling_params.py#L41-L96 (StructuredOutputsParams) @ v0.22.1.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    reasoning_ended: bool | None = None

    def all_constraints_none(self) -> bool:
        """Whether nothing is asked of the text.

        Source: vllm/sampling_params.py#L82-L96 (StructuredOutputsParams.all_constraints_none)
        @ v0.22.1
        """
        return all(getattr(self, name) is None for name in _CONSTRAINTS)

    def all_non_structural_tag_constraints_none(self) -> bool:
        """Whether only a structural tag is asked of the text."""
        return all(getattr(self, name) is None for name in _CONSTRAINTS[:-1])

    def __new__(cls, *args: Any, **kwargs: Any) -> StructuredOutputsParams:
        """Refuse an unknown keyword, with the most similar known one in the message."""
        if message := unknown_names(cls, kwargs, "structured outputs parameter"):
            raise TypeError(message)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        given = [name for name in _CONSTRAINTS if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of " + ", ".join(_CONSTRAINTS)
            raise RequestError(
                f"structured_outputs has {found}; give exactly one", param="structured_outputs"
            )
        for name, fix in (
            ("disable_additional_properties", "set it in structured_outputs_config, for all"),
            ("whitespace_pattern", "use disable_any_whitespace, or write a grammar"),
        ):
            if not ((value := getattr(self, name)) is None or value is False):
                raise RequestError(
                    f"structured_outputs has {name}={show(value)}; {fix}",
                    param="structured_outputs",
                )
        self.disable_additional_properties, self.whitespace_pattern = False, None
        if not isinstance(flag := self.disable_any_whitespace, bool):
            raise _bad("disable_any_whitespace", flag, "it must be True or False")
        if not isinstance(ended := self.reasoning_ended, bool | None):
            raise _bad("reasoning_ended", ended, "it must be True, False or None")
        if self.json_object is not None and self.json_object is not True:
            raise _bad("json_object", self.json_object, "set it to True or leave it out")
        if not isinstance(self.json, str | dict | None):
            raise _bad("json", self.json, "it must be a JSON schema, a dict or its text")
        if not isinstance(tag := self.structural_tag, str | dict | None):
            raise _bad("structural_tag", tag, "it must be a dict, or its JSON text")
        for name in ("json", "structural_tag"):
            if isinstance(value := getattr(self, name), dict):
                try:
                    json.dumps(value)
                except RecursionError:
                    raise RequestError(
                        f"{name} is a dict that nests too deeply", param="structured_outputs"
                    ) from None
                except (TypeError, ValueError) as error:
                    raise RequestError(
                        f"{name} is a dict that cannot be written as JSON: {error}",
                        param="structured_outputs",
                    ) from None
        for name in ("regex", "grammar"):
            if not isinstance(value := getattr(self, name), str | None):
                raise _bad(name, value, "it must be a string")
        if self.grammar is not None and not self.grammar.strip():
            raise RequestError(
                "grammar is blank; write at least a rule root ::= ...", param="structured_outputs"
            )
        if self.choice is not None:
            check_list("choice", self.choice, str, "strings", param="structured_outputs")
            if not self.choice:
                raise RequestError(
                    "choice is empty; name at least one text", param="structured_outputs"
                )
