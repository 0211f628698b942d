"""Reasoning: any cut of a text gives the same two texts, by every route that answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_vllm.config import EngineConfig, StructuredOutputsConfig
from mini_vllm.engine.chat_template import render_chat
from mini_vllm.entrypoints.openai.reasoning_parser import ReasoningParser
from mini_vllm.entrypoints.openai.required_tools import join_news
from mini_vllm.entrypoints.openai.response_items import messages_of
from mini_vllm.reasoning import FORMATS, OTHERS, Beginning, ReasoningFormat, reasoning_format
from mini_vllm.structured_output.backend_types import StructuredOutputOptions
from mini_vllm.structured_output.native import NativeBackend
from mini_vllm.structured_output.sleeping import EndOfReasoning, SleepingGrammar
from mini_vllm.structured_output.token_index import TokenTable, unpack_bits
from tests.engine.entrypoints.scripted import Tokenizer, scripted

INSIDE, OUTSIDE, BEHIND = Beginning.INSIDE, Beginning.OUTSIDE, Beginning.BEHIND
QWEN3 = FORMATS["qwen3"]
CALL = '<tool_call>\n{"name": "clock", "arguments": {"at": "</think>"}}\n</tool_call>'
CASES: list[tuple[str, Beginning, str | None, str | None]] = [
    ("<think>\nHm.\n</think>\n\nYes.", INSIDE, "\nHm.\n", "\n\nYes."),
    ("Hm.</think>Yes.", INSIDE, "Hm.", "Yes."),  # the prompt has opened it
    ("\n <think>Hm.</think>", INSIDE, "Hm.", None),
    ("Hm", INSIDE, "Hm", None),  # cut
    ("<think></think>Yes", INSIDE, None, "Yes"),
    (" \n", INSIDE, " \n", None),
    ("<thin", INSIDE, "<thin", None),
    ("<thinking>a</thinking>b</thi</think>c</think>", INSIDE,
     "<thinking>a</thinking>b</thi", "c</think>"),
    ("a <think> b </think> c <think>", INSIDE, "a <think> b ", " c <think>"),
    (f"Hm.{CALL}", INSIDE, "Hm.", CALL),
    ("<tool_x></tool_call></think>a", INSIDE, "<tool_x></tool_call>", "a"),
    ("Yes </think> no", OUTSIDE, None, "Yes </think> no"),
    ("<think>Hm.</think>Yes", OUTSIDE, "Hm.", "Yes"),
    ("\n<thin", OUTSIDE, None, "\n<thin"),
    ("<think>Hm.</think>Yes", BEHIND, None, "<think>Hm.</think>Yes"),
    ("", INSIDE, None, None),
]  # fmt: skip


@pytest.mark.parametrize("text, beginning, reasoning, content", CASES)
def test_a_whole_text(
    text: str, beginning: Beginning, reasoning: str | None, content: str | None
) -> None:
    assert ReasoningParser(QWEN3, beginning).extract_reasoning(text) == (reasoning, content)


PIECES = ["<think>", "</think>", "<tool_call>", "<", "</", "think", ">", " ", "\n", "a", "日"]


@given(st.lists(st.sampled_from(PIECES)), st.data(), st.sampled_from(Beginning))
def test_every_cut_gives_the_same_two_texts(
    pieces: list[str], data: st.DataObject, beginning: Beginning
) -> None:
    text, parser = "".join(pieces), ReasoningParser(QWEN3, beginning)
    news: dict[str, str] = {}
    rest = text
    while rest:
        cut = data.draw(st.integers(1, len(rest)))
        new = parser.extract_streaming(rest[:cut])
        assert all(new.values()) and not ("content" in news and "reasoning" in new)
        news, rest = join_news(news, new), rest[cut:]
        # No more is held back than could be a tag, and the white space before one.
        assert len(parser._held.strip()) < len("<tool_call>")
    news = join_news(news, parser.finish())
    whole = ReasoningParser(QWEN3, beginning).extract_reasoning(text)
    assert (news.get("reasoning"), news.get("content")) == whole


# ---------------------------------------------------------------------- formats


def test_names_and_pairs_of_tags() -> None:
    assert reasoning_format("seed_oss").start == "<seed:think>"
    assert reasoning_format("<plan>...</plan>") == ReasoningFormat("<plan>", "</plan>")
    assert not FORMATS.keys() & set(OTHERS)
    for name, complaint in (
        ("granite", "more than a pair of tags"), ("qwen", "is not known"), (["x"], "not known"),
        ("...</x>", "two texts"), ("##...##", "two texts"), ("<a...a>", "may not end as the"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=complaint):
            StructuredOutputsConfig(reasoning_parser=name)  # type: ignore[arg-type]


def test_the_argument_and_the_section() -> None:
    def structured(**options: Any) -> StructuredOutputsConfig:
        return EngineConfig.from_kwargs("storyteller-draft", **options).structured

    section = {"backend": "native", "reasoning_parser": "step3", "enable_in_reasoning": True}
    assert structured(structured_outputs_config=section).reasoning_parser == "step3"
    both = structured(structured_outputs_config=section, reasoning_parser="qwen3")
    assert both == StructuredOutputsConfig("native", False, True, "qwen3", True)
    assert structured(reasoning_parser=None) == structured(reasoning_parser="") == structured()
    with pytest.raises(ValueError, match="more than a pair of tags"):
        structured(reasoning_parser="openai_gptoss")


@pytest.mark.parametrize(
    "turn, is_wanted, continues, beginning",
    [
        ("assistant\n", True, False, INSIDE),
        ("assistant\n", False, False, OUTSIDE),
        ("assistant\n<think>\n", False, False, INSIDE),
        ("assistant\n<think>\n\n</think>\n\n", True, False, BEHIND),
        ("user </think> assistant\n", True, False, INSIDE),  # no turn ends with a special token
        ("assistant\n<think>So", True, True, INSIDE),
        ("assistant\n<think>So</think>Oslo", True, True, BEHIND),
    ],
)
def test_where_an_answer_begins(
    turn: str, is_wanted: bool, continues: bool, beginning: Beginning
) -> None:
    assert QWEN3.beginning(turn.encode(), is_wanted, continues) is beginning


def test_which_models_think_by_default() -> None:
    asked = FORMATS["deepseek_v3"]
    for template_kwargs, of_qwen3, of_deepseek_v3 in (
        ({}, True, False), ({"enable_thinking": False}, False, False),
        ({"thinking": True}, True, True), ({"enable_thinking": None}, True, False),
    ):  # fmt: skip
        assert QWEN3.is_wanted(template_kwargs) is of_qwen3
        assert asked.is_wanted(template_kwargs) is of_deepseek_v3


# ---------------------------------------------------------------------- chats

ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 500}
CLOCK: Any = {"type": "function", "function": {"name": "clock", "parameters": {}}}


def chat(client: Any, **more: Any) -> dict[str, Any]:
    """The message of a whole answer; streamed, the deltas joined to one."""
    answer = client.post("/v1/chat/completions", json=ASK | more)
    assert answer.status_code == 200, answer.text
    if not more.get("stream"):
        (choice,) = answer.json()["choices"]
        message = choice["message"]
        calls = [call["function"] for call in message["tool_calls"]]
        texts = {key: message[key] for key in ("reasoning", "content")}
        return texts | {"calls": calls, "finish_reason": choice["finish_reason"]}
    texts, calls = {"reasoning": None, "content": None}, []
    for line in answer.text.splitlines():
        if not line.startswith("data: {"):
            continue
        (choice,) = json.loads(line[6:])["choices"]
        delta = choice["delta"]
        assert not (texts["content"] and delta.get("reasoning"))
        for key in texts:
            texts[key] = (texts[key] or "") + delta[key] if delta.get(key) else texts[key]
        for change in delta.get("tool_calls", ()):
            function = change["function"]
            calls += [{"name": function["name"], "arguments": ""}] if "name" in function else []
            calls[change["index"]]["arguments"] += function["arguments"]
    return texts | {"calls": calls, "finish_reason": choice["finish_reason"]}


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat(stream: bool) -> None:
    text = f"<think>Hm, {CALL[:9]}, so</think>I look. {CALL}"
    texts = [text, text, "So</think>Yes", "Yes", "Yes", "no end", "<plan>a</plan>b"]
    client, engine = scripted(*texts, structured={"reasoning_parser": "deepseek_r1"})
    told = chat(client, stream=stream, tools=[CLOCK])
    call = {"name": "clock", "arguments": '{"at": "</think>"}'}
    of_call: Any = {"calls": [call], "finish_reason": "tool_calls"}
    assert told == of_call | {"reasoning": "Hm, <tool_cal, so", "content": "I look. "}
    told = chat(client, stream=stream, tools=[CLOCK], include_reasoning=False)
    assert told == of_call | {"reasoning": None, "content": "I look. "}
    assert chat(client, stream=stream)["reasoning"] == "So"
    quiet = {"chat_template_kwargs": {"enable_thinking": False}, "stream": stream}
    assert chat(client, **quiet)["content"] == "Yes"
    assert chat(client, reasoning_effort="none", stream=stream)["content"] == "Yes"
    assert chat(client, stream=stream)["reasoning"] == "no end"
    assert all(params.skip_special_tokens is False for params in engine.params)
    client, _ = scripted("<plan>a</plan>b", structured={"reasoning_parser": "<plan>...</plan>"})
    told = chat(client, stream=stream)
    assert (told["reasoning"], told["content"]) == ("a", "b")


def test_a_server_may_turn_thinking_off_and_a_request_on() -> None:
    client, engine = scripted(
        "Yes", "So</think>Yes", "So</think>Yes",
        structured={"reasoning_parser": "qwen3"},
        default_chat_template_kwargs={"enable_thinking": False},
    )  # fmt: skip
    assert chat(client)["content"] == "Yes"
    for more in ({"reasoning_effort": "low"}, {"chat_template_kwargs": {"enable_thinking": True}}):
        told = chat(client, **more)
        assert (told["reasoning"], told["content"]) == ("So", "Yes")
    assert [prompt.endswith("</think>\n\n") for prompt in engine.prompts] == [True, False, False]


@pytest.mark.parametrize("behind", ["", "<think>\n"])
@pytest.mark.parametrize("stream", [False, True])
def test_forms_and_calls_that_must_be_made(behind: str, stream: bool) -> None:
    """The grammar is told whether to sleep; an end by a call is none where a form is to come."""
    texts = [
        'Hm </think>{"at": 1}', 'Hm <tool_call></think>[{"name": "clock", "parameters": {}}]',
        'Hm</think>{"a": 1}', "{}",
    ]  # fmt: skip
    client, engine = scripted(*texts, behind=behind, structured={"reasoning_parser": "qwen3"})
    named = {"type": "function", "function": {"name": "clock"}}
    told = chat(client, stream=stream, tools=[CLOCK], tool_choice=named)
    assert told["calls"] == [{"name": "clock", "arguments": '{"at": 1}'}]
    told = chat(client, stream=stream, tools=[CLOCK], tool_choice="required")
    assert told["reasoning"] == "Hm <tool_call>" and told["finish_reason"] == "tool_calls"
    assert told["calls"] == [{"name": "clock", "arguments": "{}"}]
    form = {"response_format": {"type": "json_object"}, "stream": stream}
    told = chat(client, **form)
    assert (told["reasoning"], told["content"]) == ("Hm", '{"a": 1}')
    told = chat(client, **form, chat_template_kwargs={"enable_thinking": False})
    assert (told["reasoning"], told["content"]) == (None, "{}")
    ended = [params.structured_outputs.reasoning_ended for params in engine.params]
    assert ended == [False, False, False, True]


def test_thoughts_of_earlier_turns_reach_the_template_and_close_nothing() -> None:
    client, engine = scripted("Hm</think>Yes", structured={"reasoning_parser": "qwen3"})
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>old</think>b", "reasoning_content": "old"},
        {"role": "user", "content": "c"},
    ]
    assert chat(client, messages=messages)["reasoning"] == "Hm"
    thought = '"reasoning": "old", "reasoning_content": "old"'
    assert thought in engine.prompts[0]
    with pytest.raises(ValueError, match="reasoning is 3; it must be a text"):
        render_chat(Tokenizer(), [{"role": "assistant", "content": "b", "reasoning": 3}])


@pytest.mark.parametrize("said, told", [("It", (None, " is")), ("<think>Hm", (" is", None))])
def test_an_answer_that_goes_on_with_a_message(said: str, told: tuple[Any, Any]) -> None:
    client, _ = scripted(" is", structured={"reasoning_parser": "deepseek_r1"})
    messages = [*ASK["messages"], {"role": "assistant", "content": said}]
    goes_on = {"add_generation_prompt": False, "continue_final_message": True}
    found = chat(client, messages=messages, **goes_on)
    assert (found["reasoning"], found["content"]) == told


def test_without_a_parser_all_is_content() -> None:
    client, _ = scripted("<think>Hm</think>Yes")
    told = chat(client)
    assert (told["reasoning"], told["content"]) == (None, "<think>Hm</think>Yes")


# ---------------------------------------------------------------------- responses


def test_responses_have_items_of_reasoning() -> None:
    text = f"<think>Hm 日.</think>I look. {CALL}"
    client, engine = scripted(text, text, "Yes", "x", structured={"reasoning_parser": "qwen3"})
    asked = openai.OpenAI(base_url="http://testserver/v1", api_key="k", http_client=client)
    ask: Any = {"model": "m", "input": "Rain?", "tools": [{"type": "function", "name": "clock"}]}
    whole = asked.responses.create(**ask)
    kinds = [item.type for item in whole.output]
    assert kinds == ["reasoning", "message", "function_call"]
    thought: Any = whole.output[0]
    assert (thought.content[0].text, thought.summary, thought.status) == ("Hm 日.", [], "completed")
    assert whole.output_text == "I look. "
    # As many tokens as bytes: those of the tags do not count.
    assert whole.usage is not None
    assert whole.usage.output_tokens_details.reasoning_tokens == len("Hm 日.".encode())
    events = list(asked.responses.create(stream=True, **ask))
    deltas = [e.delta for e in events if e.type == "response.reasoning_text.delta"]
    assert "".join(deltas) == "Hm 日." and len(deltas) > 1
    of_thought = [e.type for e in events if getattr(e, "output_index", None) == 0]
    assert [kind.removeprefix("response.") for kind in of_thought if "delta" not in kind] == [
        "output_item.added", "reasoning_part.added", "reasoning_text.done", "reasoning_part.done",
        "output_item.done",
    ]  # fmt: skip
    final: Any = events[-1]
    assert [item.type for item in final.response.output] == kinds
    assert final.response.usage == whole.usage
    output = {"type": "function_call_output", "call_id": whole.output[2].call_id, "output": "9"}  # type: ignore[union-attr]
    asked.responses.create(**ask | {"input": [output], "previous_response_id": whole.id})
    assert '"reasoning": "Hm \\u65e5."' in engine.prompts[2]  # the template writes JSON


def test_items_of_reasoning_belong_to_what_follows() -> None:
    def thought(text: str, **more: Any) -> Any:
        return {"type": "reasoning", "content": [{"type": "reasoning_text", "text": text}]} | more

    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    said: Any = {"type": "message", "role": "assistant", "content": "b"}
    assert messages_of([thought("x"), call, thought("y"), said]) == [
        {"role": "assistant", "content": ["b"], "tool_calls": messages_of([call])[0]["tool_calls"],
         "reasoning": "xy"}
    ]  # fmt: skip
    summary = thought("", content=None, summary=[{"type": "summary_text", "text": "s"}])
    assert messages_of([summary, said])[0]["reasoning"] == "s"
    asked = {"role": "user", "content": "c"}
    assert messages_of([thought("x"), asked, said]) == [asked, messages_of([said])[0]]


# ---------------------------------------------------------------------- grammars that sleep

TEXTS = [b"<", b"/", b"t", b">", b"a", b"</t", b">a", b"</t>", b"</t>a", b"ba", b"", b""]
EOS, TAG = 10, 11


def sleeping(special: bytes = b"", budget: int | None = None) -> SleepingGrammar:
    table = TokenTable(TEXTS, {EOS: b"<eos>", TAG: special})
    grammar = NativeBackend(table, [EOS]).compile_grammar(StructuredOutputOptions.REGEX, "ba?")
    return SleepingGrammar(grammar, EndOfReasoning(b"</t>", table), budget)


def allowed(grammar: SleepingGrammar) -> list[int]:
    words = np.full((1, 1), -1, dtype=np.int32)
    grammar.fill_bitmask(words, 0)
    return np.flatnonzero(unpack_bits(words[0], len(TEXTS))).tolist()


def test_a_grammar_sleeps_until_the_end_tag() -> None:
    grammar, free = sleeping(), [*range(len(TEXTS))]
    assert allowed(grammar) == [i for i in free if i != 8]  # "</t>a" would write behind the tag
    assert grammar.accept_tokens("", [4, 0, EOS, 0, 1, 2]) and not grammar.is_awake
    assert allowed(grammar) == [i for i in free if i not in (6, 8)]
    assert not grammar.accept_tokens("", [6]) and grammar.must_end() is False
    assert grammar.kept_rows is None
    # Drafts that end the reasoning are followed by the form, in the same step.
    assert grammar.validate_tokens([3, 9, 9]) == [3, 9]
    assert grammar.validate_tokens([4, 8, 4]) == [4]
    assert grammar.accept_tokens("", [3, 9, EOS]) and grammar.is_terminated()
    grammar.rollback(2)
    assert grammar.is_awake and allowed(grammar) == [9] and grammar.kept_rows is not None
    grammar.rollback(2)
    assert not grammar.is_awake and allowed(grammar) == [i for i in free if i != 8]
    with pytest.raises(ValueError, match="cannot take 99"):
        grammar.rollback(99)
    grammar.reset()
    assert grammar.accept_tokens("", [7]) and allowed(grammar) == [9]


def test_a_tag_may_be_a_special_token() -> None:
    grammar = sleeping(b"</t>")
    assert grammar.accept_tokens("", [4, TAG]) and grammar.is_awake


def test_a_spent_budget_leaves_the_end_tag_only() -> None:
    grammar, free = sleeping(budget=2), [i for i in range(len(TEXTS)) if i != 8]
    assert allowed(grammar) == free and grammar.accept_tokens("", [4])
    assert grammar.validate_tokens([4, 7, 9]) == [4, 7, 9]
    assert grammar.validate_tokens([4, 4, 9]) == [4]  # drafts, too
    assert grammar.accept_tokens("", [4]) and allowed(grammar) == [7]  # the longest piece of it
    assert not grammar.accept_tokens("", [4]) and grammar.accept_tokens("", [7, 9])
    grammar.rollback(2)
    assert allowed(grammar) == [7]
    grammar.rollback(1)
    assert grammar.accept_tokens("", [0]) and allowed(grammar) == [1]  # a part is there already
    assert grammar.accept_tokens("", [1]) and allowed(grammar) == [2]
    assert grammar.accept_tokens("", [2, 3]) and grammar.is_awake
    assert allowed(sleeping(b"</t>", budget=0)) in ([7], [TAG])
    end = EndOfReasoning(b"\n", TokenTable(TEXTS, {EOS: b"<eos>"}))
    assert end.closing(0) is None and np.array_equal(end.closing_row(0), end.row(0))
