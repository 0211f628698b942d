"""The numbers that chapters work out are what the engine does."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

from labkit.course.root import ROOT, UPSTREAM
from mini_vllm import bundled
from mini_vllm.config import CacheConfig, SchedulerConfig
from mini_vllm.core.kv_cache_manager import KVCacheManager
from mini_vllm.distributed.collectives import one_shot_time
from mini_vllm.engine.admission import Admission
from mini_vllm.engine.exceptions import QueueFullError
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import load_config
from mini_vllm.model.qwen3_vl import MRotaryEmbedding
from mini_vllm.policies.vllm_v0 import VllmV0
from mini_vllm.quantization.oneshot.gptq import inverse_factor
from mini_vllm.quantization.packing import quantize
from mini_vllm.request import Request, RequestStatus
from mini_vllm.structured_output.ebnf import parse_grammar
from mini_vllm.structured_output.json_schema import any_json, compile_schema
from mini_vllm.structured_output.patterns import parse_regex
from mini_vllm.structured_output.pushdown import Machine, Pushdown, compile_rules
from mini_vllm.structured_output.regex_automaton import (
    DEAD,
    Nfa,
    compile_pattern,
    determinise,
    epsilon_closure,
    utf8_ranges,
)
from mini_vllm.structured_output.token_index import TokenIndex, TokenTable, token_bytes
from tests.engine.core.build import add, ids, make_request, make_scheduler, step, table


def deep_dive(phase: str) -> str:
    """The chapter's words, with its lines joined and without the links' addresses."""
    [path] = Path(ROOT, "phases").glob(f"{phase}-*/01-deep-dive.md")
    return " ".join(re.sub(r"\]\([^)]*\)", "]", path.read_text(encoding="utf-8")).split())


def test_00_a_prompt_of_1000_tokens_under_a_budget_of_600() -> None:
    scheduler = make_scheduler(blocks=300, budget=600, max_model_len=1100)
    add(scheduler, make_request("a", 1000))
    assert [step(scheduler).num_scheduled_tokens["a"] for _ in range(4)] == [600, 400, 1, 1]
    assert "first step gives it 600. The second gives it the 400 that are left" in deep_dive("00")


def test_00_a_table_of_arrows_has_48_entries() -> None:
    arrows = sum(old.can_become(old, new) for old in RequestStatus for new in RequestStatus)
    assert arrows == 48
    text = Path(ROOT, "solutions/00-orientation/WALKTHROUGH.md").read_text(encoding="utf-8")
    assert "The cost: 48 entries" in text


@pytest.mark.parametrize(
    "phase, file",
    [
        ("00", "vllm/v1/request.py"),
        ("01", "vllm/v1/worker/gpu_model_runner.py"),
        ("03", "vllm/v1/core/sched/scheduler.py"),
        ("05", "vllm/v1/worker/gpu_model_runner.py"),
    ],
)
@pytest.mark.upstream
@pytest.mark.skipif(not (ROOT / UPSTREAM).is_dir(), reason="upstream's source: make upstream")
def test_lines_of_upstreams_files(phase: str, file: str) -> None:
    lines = (ROOT / UPSTREAM / file).read_text(encoding="utf-8").count("\n")
    assert f"{lines:,} lines" in deep_dive(phase)


def test_02_a_hit_on_a_free_block_costs_a_free_block() -> None:
    manager = KVCacheManager(4 + 1, 16, 64, True, hash_root=b"root")

    def request(name: str, prompt: list[int]) -> Request:
        made = make_request(name, prompt)
        made.set_block_hasher(manager.block_hasher)
        return made

    def admit(made: Request) -> bool:
        hits, num_hits = manager.get_computed_blocks(made)
        num_new = made.num_tokens - num_hits
        return manager.allocate_slots(made, num_new, num_hits, hits) is not None

    prompt = list(range(40))
    runs, gone = request("runs", prompt[:16] + [999]), request("gone", prompt[:32])
    assert admit(runs) and admit(gone)
    manager.free(gone)
    assert admit(request("takes the rest", [998]))
    newcomer = request("newcomer", prompt)
    hits, num_hits = manager.get_computed_blocks(newcomer)
    assert num_hits == 32
    assert [block.ref_cnt for block in hits.blocks] == [1, 0], "a request holds one of them"
    assert manager.num_free_blocks == 1
    assert not admit(newcomer), "None, in time"
    assert "a prompt of 40 tokens needs three blocks of 16" in deep_dive("02")


def test_03_a_full_sequence_has_one_position_that_is_never_computed() -> None:
    scheduler = make_scheduler(blocks=600, budget=4096, max_model_len=2048)
    request = make_request("a", 2040, max_tokens=None)
    add(scheduler, request)
    while scheduler.has_requests():
        step(scheduler)
    assert request.num_output_tokens == 8
    assert request.num_computed_tokens == 2047
    text = deep_dive("03")
    assert "a prompt of 2,040 gets eight tokens of output" in text
    assert "so 2,047 positions are computed" in text


def test_03_the_index_moves_when_a_planned_request_is_the_victim() -> None:
    scheduler = make_scheduler(blocks=5, policy="priority", caching=False, reserve=False)
    for arrival, (name, priority) in enumerate({"A": 0, "B": 9, "C": 1}.items()):
        add(scheduler, make_request(name, 4, priority=priority, arrival=arrival))
        step(scheduler)
    assert [len(table(scheduler, name)) for name in "ABC"] == [2, 2, 1]
    output = step(scheduler)
    assert output.num_scheduled_tokens == {"A": 1, "C": 1}
    assert output.preempted_req_ids == ["B"]
    assert ids(scheduler.running) == ["A", "C"]
    assert "A, B and C with the priorities 0, 9 and 1" in deep_dive("03")


def test_06_a_table_of_counts() -> None:
    assert round(256 * 151_936 * 8 / 1e6) == 311
    assert "One table is 311 MB" in deep_dive("06")


def test_16_siblings_share_full_blocks_and_v0_copies_the_last() -> None:
    prompt = list(range(40))
    scheduler = make_scheduler(blocks=40, block_size=16, budget=200, max_model_len=128)
    add(scheduler, *[make_request(f"{i}_g", prompt) for i in range(4)])
    assert list(step(scheduler).num_scheduled_tokens.values()) == [40, 8, 8, 8]

    config = SchedulerConfig(max_num_batched_tokens=200, max_num_seqs=8, max_model_len=128)
    v0 = VllmV0(config, CacheConfig(16, 41, False), hash_root=b"root")
    add(v0, *[make_request(f"{i}_g", prompt) for i in range(4)])
    assert step(v0).num_scheduled_tokens == {"0_g": 40}
    assert len(step(v0).blocks_to_copy) == 3
    text = deep_dive("16")
    assert "with 64 tokens instead of 160" in text
    assert "copied the last block three times" in text


def chapter(phase: str, name: str) -> str:
    [path] = Path(ROOT, "phases").glob(f"{phase}-*/{name}.md")
    return path.read_text(encoding="utf-8")


def test_08_what_is_accepted_is_what_two_distributions_share() -> None:
    q, p = (0.6, 0.3, 0.1), (0.3, 0.3, 0.4)
    accepted = [a * min(1.0, b / a) for a, b in zip(q, p, strict=True)]
    assert round(sum(accepted), 9) == 0.7 == round(sum(map(min, q, p)), 9)
    assert "the chance of acceptance is Σ min(p, q)" in chapter("08", "00-guide")


def test_09_the_steps_of_the_group() -> None:
    weight, bits = torch.tensor([[0.31, -0.08, 0.02, 0.17]]), 4
    for steps, stored, back in ((7, 15, 0.310), (8, 15, 0.271), (16, 15, 0.136)):
        scale, zero = torch.tensor([[0.31 / steps]]), torch.tensor([[8]])
        numbers = quantize(weight, scale, zero, bits)
        assert int(numbers[0, 0]) == stored
        assert round(float((numbers - zero)[0, 0] * scale), 3) == back
    assert "stored as 15 and read back as 0.136" in chapter("09", "02-mini-build")


def test_09_where_each_format_reaches_the_ridge() -> None:
    text = chapter("09", "00-guide")
    for bits, tokens in ((16, 295), (8, 148), (4 + 16 / 128, 77)):
        assert math.ceil(295 * bits / 16) == tokens
        assert f"{tokens} tokens" in text or re.search(rf"T +{tokens}\n", text), tokens
    assert round(16 / (4 + 16 / 128), 2) == 3.88 and round(295 / 128, 1) == 2.3
    assert round(164 / 35, 1) == 4.7


def test_09_the_factor_of_two_inputs_that_are_nearly_equal() -> None:
    factor = inverse_factor(torch.ones(2, 2), 0.01)
    rounded = [[round(x, 3) for x in row] for row in factor.tolist()]
    assert rounded == [[7.089, -7.018], [0.0, 0.995]]
    assert round(float(factor[0, 1] / factor[0, 0]), 3) == -0.990
    error = (0.6 - 1) / float(factor[0, 0])
    assert round(error, 4) == -0.0564
    assert round(0.6 - error * float(factor[0, 1]), 3) == 0.204
    assert "[[7.089, -7.018], [0, 0.995]]" in chapter("09", "02-mini-build")


def test_10_how_far_tensor_parallelism_pays() -> None:
    text = chapter("10", "00-guide")
    kv = 32 * 2 * 8 * 128 * 2
    assert kv == 131_072 and round(64 * 4000 * kv / 1e9, 1) == 33.6
    read, message = (16e9 + 33.6e9) / 4.8e12, 64 * 4096 * 2
    assert message == 524_288 and round(message / 300e9 * 1e6, 2) == 1.75
    for p in (1, 2, 8):
        waits = 65 * one_shot_time(message, p, 5e-6, 1 / 300e9) if p > 1 else 0.0
        step = read / p + waits
        wait = f"{waits * 1e3:.2f} ms" if waits else "0"
        faster = f"{read / step:.1f} x" if p > 1 else "1"
        row = f"| {p} | {read / p * 1e3:.1f} ms | {wait} | {step * 1e3:.1f} ms | {faster} |"
        assert row in text, row
    kv = 80 * 2 * 8 * 128 * 2
    assert round(kv / 1e3) == 328
    for cards, tokens in ((2, "12,000"), (4, "452,000")):
        room = cards * 80e9 * 0.9 - 140e9
        assert f"{round(room / kv, -3):,.0f}" == tokens and tokens in text


def test_13_what_a_picture_of_1000_pixels_becomes() -> None:
    height, width = smart_resize(1000, 1000, factor=32, min_pixels=65_536, max_pixels=16_777_216)
    assert (height, width) == (992, 992) and (height // 32) * (width // 32) == 961
    assert "31 x 31 = 961 rows" in chapter("13", "00-guide")


def test_13_which_pair_follows_which_position() -> None:
    args = replace(load_config(bundled.path("storyteller-vision")), head_dim=16)
    rows = MRotaryEmbedding(args, [3, 3, 2]).row_of_pair.tolist()
    drawn = "  ".join("thw"[row] for row in rows)
    assert f"follows     {drawn}" in chapter("13", "00-guide")


def test_16_when_a_swap_is_cheaper() -> None:
    text = chapter("16", "00-guide")
    for name, weights, kv, ratio in (
        ("0.6B", 0.6e9, 114_688, "0.33"),
        ("8B", 8e9, 131_072, "3.8"),
        ("70B", 70e9, 327_680, "13.4"),
    ):
        compute, move = 2 * weights / 400e12, 2 * kv / 25e9
        assert f"{compute / move:.{len(ratio.partition('.')[2])}f}" == ratio
        row = f"| {name} | {compute * 1e6:.0f} µs | {move * 1e6:.0f} µs | {ratio}: "
        assert row in text, row
    price = json.loads(Path(ROOT, "benchmarks/results/arena/cost_model.json").read_text())[
        "seconds_per"
    ]
    n, block, token = 512, price["swapped_blocks"], price["prefill_tokens"]
    again = price["prefills"] + n * token + n * n * price["prefill_pairs"]
    assert f"{block * 1e6:.0f} µs for a block that moves, {token * 1e6:.0f} µs for a token" in text
    assert f"takes {again / (2 * n / 16 * block):.0f} times as long as swapping" in text


def test_15_the_link_that_was_measured() -> None:
    link = json.loads(Path(ROOT, "benchmarks/results/arena/link.json").read_text())["seconds_per"]
    trip, token = link["trip"] * 1e3, link["token"] * 1e6
    assert f"{trip:.1f} ms a trip and {token:.1f} µs for the 4,096 bytes" in chapter(
        "15", "00-guide"
    )
    assert f"which is {4096 / token:.0f} MB/s" in chapter("15", "00-guide")


def overload(limit: int, num_requests: int = 2200) -> tuple[float, float]:
    """The slowest answer, and the share that is refused: 11 requests a second, evenly spaced, for
    a server that ends 10 a second, one after another."""
    unfinished: dict[str, Request] = {}
    admission, ends, slowest, refused, free = Admission(unfinished, limit, None), {}, 0.0, 0, 0.0
    for number in range(num_requests):
        now, name = number / 11, str(number)
        for done in [key for key, end in ends.items() if end <= now]:
            del unfinished[done], ends[done]
        try:
            admission.check(1, 4)
        except QueueFullError:
            refused += 1
            continue
        unfinished[name] = make_request(name, 4)
        ends[name] = free = max(free, now) + 0.1
        slowest = max(slowest, free - now)
    return slowest, refused / num_requests


def test_14_which_limit_to_set() -> None:
    text = chapter("14", "00-guide")
    slowest, refused = overload(20)
    assert 1.9 < slowest <= 2.0 + 1e-9 and "the slowest request then takes 2.0 s" in text
    assert 0.08 < refused < 1 / 11 and "at most 10 x 2 = 20 may be" in text
    assert 9.9 < overload(100)[0] <= 10.0 + 1e-9
    assert "With a limit of 100 the slowest takes 10 s" in text


def test_14_retries_multiply() -> None:
    text, served, asked, attempts = chapter("14", "00-guide"), 10.0, 20.0, 20.0
    for _ in range(1000):  # each refusal is tried again, twice at most
        refused = 1 - served / attempts
        attempts = asked * (1 + refused + refused**2)
    assert f"turns 20 into {attempts:.0f} attempts a second" in text
    assert round(asked * 1.1) == 22 and "there are at most 22" in text
    assert 3**3 == 27 and "3 attempts each make 27" in text


def test_14_coordinated_omission() -> None:
    text = chapter("14", "00-guide")
    closed = [0.01] * 9000 + [10.0]
    arrivals = [number / 100 for number in range(10_000)]
    opened = [max(50.0 - at, 0.01) if 40 <= at < 50 else 0.01 for at in arrivals]
    assert sum(latency for latency in closed) == pytest.approx(100)
    late = sum(40 <= at < 50 for at in arrivals)
    assert f"| {len(closed):,} | 1 | {np.percentile(closed, 99) * 1e3:.0f} ms |" in text
    assert f"| {len(opened):,} | {late:,} | {np.percentile(opened, 99):.1f} s |" in text


def test_12_the_machine_of_a_star_and_its_sets() -> None:
    text, pattern, nfa = chapter("12", "02-mini-build"), parse_regex("ab*c"), Nfa()
    assert nfa.add(pattern) == (0, 1)
    free = {s: [target for target, _ in to] for s, to in enumerate(nfa.free) if to}
    assert free == {0: [2], 3: [4], 4: [8], 5: [9], 7: [8], 8: [6, 5], 10: [1]}
    assert [(s, *move) for s, moves in enumerate(nfa.moves) for move in moves] == [
        (2, (ord("a"), ord("a")), 3), (6, (ord("b"), ord("b")), 7), (9, (ord("c"), ord("c")), 10)
    ]  # fmt: skip
    for number, state in enumerate((0, 3, 7, 10)):
        closure = " ".join(map(str, sorted(epsilon_closure(nfa, [state]))))
        row = f"{f'{{{state}}}':12}{f'{{{closure}}}':19}{number}"
        assert row in text, row
    assert [len(determinise(pattern)), len(compile_pattern(pattern))] == [4, 3]


def test_12_three_runs_of_bytes() -> None:
    runs = [bytes(end).hex() for run in utf8_ranges(0xBE, 0x101) for end in zip(*run, strict=True)]
    assert runs == ["c2be", "c2bf", "c380", "c3bf", "c480", "c481"]
    assert "C2 [BE-BF], C3 [80-BF] and C4 [80-81]" in chapter("12", "02-mini-build")


def storyteller_tokens() -> list[bytes]:
    return token_bytes(load_tokenizer(bundled.path("storyteller")), 2048)


def test_12_states_of_one_answer() -> None:
    """What a person's automaton has met when all masks on the way are made."""
    tokenizer = load_tokenizer(bundled.path("storyteller"))
    text = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {
            "name": text,
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "tags": {"type": "array", "items": text},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
    walk = Pushdown(compile_rules(compile_schema(json.dumps(schema))))
    index, answer = TokenIndex(walk, TokenTable(storyteller_tokens())), chapter("12", "00-guide")
    [(answer, tokens, met, stood)] = re.findall(
        r"`(\{\"name[^`]*\})` is (\d+) tokens of .*?meets\n(\d+) states, .*? stands in (\d+)",
        answer,
        re.S,
    )
    states = [walk.start]
    for token in (ids := tokenizer.encode(answer, add_special_tokens=False)):
        index.row(states[-1])
        states.append(index.walk(states[-1], token))
    index.row(states[-1])
    assert walk.is_accepting(states[-1])
    assert [len(ids), len(walk), len({*states})] == [int(tokens), int(met), int(stood)]


STRING = r"""("\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt] | "\\u" [0-9a-fA-F]{4})* "\"")"""
JSON_VALUE = rf"""root ::= value
value ::= {STRING} | "true" | "false" | "null"
  | "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?
  | "[" (value ("," value)*)? "]"
  | "{{" ({STRING} ":" value ("," {STRING} ":" value)*)? "}}"
"""


def verdicts(
    machine: Machine, tokens: list[bytes], follow: bytes | None = None
) -> list[dict[bytes, str]]:
    """Of each state of a rule, the verdict on each token that needs no stack: "yes" or "no"; or
    "ask". With `follow`, a rule that ends in the middle must go on with one of these bytes."""
    rows = []
    for state, (reads, calls) in enumerate(zip(machine.reads, machine.calls, strict=True)):
        if not reads and not calls:
            continue
        machine.start = state
        walk, row = Pushdown(machine), {}
        for token in filter(None, tokens):
            at, may_end = walk.start, False
            for byte in token:
                may_end |= walk.is_accepting(at) and (follow is None or byte in follow)
                at = walk.next(at, byte)
                if at == DEAD:
                    break
            row[token] = "yes" if at != DEAD else "ask" if may_end else "no"
        rows.append(row)
    return rows


def test_12_which_tokens_need_the_stack() -> None:
    text, tokens = chapter("12", "00-guide"), storyteller_tokens()
    lists = parse_grammar('root ::= list\nlist ::= "[" (list ("," list)*)? "]"')
    short = [b"[", b"]", b"[]", b"[,", b"]]", b"],["]
    drawn = ["yes", "yes", "yes", "no", "ask", "ask"]
    assert drawn in [
        [row[token] for token in short] for row in verdicts(compile_rules(lists), short)
    ]
    assert "verdict    yes    yes    yes    no       ask the stack        ask the stack" in text

    machine = compile_rules(parse_grammar(JSON_VALUE))
    rows = verdicts(machine, tokens)
    asks = [sum(verdict == "ask" for verdict in row.values()) for row in rows]
    follow = verdicts(machine, tokens, b",]}")
    left = sum(verdict == "ask" for row in follow for verdict in row.values())
    digits, pairs = [n for n in asks if n > 2000], sum(map(len, rows))
    assert [len(rows), pairs, sum(asks), len(digits), sum(digits), left] == [
        53, 108_385, 8_235, 4, 8_142, 34
    ]  # fmt: skip
    for number in ("  53", "108,385", "8,235     7.6 %", "8,142", "34     0.03 %"):
        assert number + "\n" in text, number
    assert [f"{sum(asks) / pairs:.1%}", f"{left / pairs:.2%}"] == ["7.6%", "0.03%"]
    inside = [[*row.values()] for row in follow if row[b'"]'] == "ask"]
    assert [[row.count(verdict) for verdict in ("yes", "no", "ask")] for row in inside] == [
        [1_916, 123, 6]
    ]
    assert "1,916 tokens are legal with every stack, 123 with none, and 6 need it" in text

    rows = verdicts(compile_rules(any_json(True)), tokens)
    asks = [verdict == "ask" for row in rows for verdict in row.values()]
    assert f"{sum(asks) / len(asks):.0%}" == "30%" and "30 % depend on the stack" in text


def test_12_the_mask_is_not_the_distribution_of_legal_texts() -> None:
    legal = {"a": 0.9 * 0.01, "b": 0.1 * 1.0}
    assert f"{legal['a'] / sum(legal.values()):.2f}" == "0.08"
    assert "0.009 begin with `a` and 0.1 with `b`" in chapter("12", "00-guide")


def test_12_where_a_keyword_at_0_says_nothing() -> None:
    a: dict[str, object] = {"type": "object", "properties": {"a": True}}
    for schema in (
        {"type": "integer", "multipleOf": 1},
        a | {"required": ["a"], "minProperties": 1},
        a | {"additionalProperties": False, "maxProperties": 1},
        {"type": "string", "multipleOf": 3},
        {"type": "string", "minProperties": 2},
        {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a"},
    ):
        assert compile_schema(json.dumps(schema))


def test_12_contains_is_a_choice_that_stacks_can_follow() -> None:
    walk = Pushdown(compile_rules(parse_grammar(r"""
        root ::= "[" (value ",")* "7" ("," value)* "]"
        value ::= [0-9] | "[" (value ("," value)*)? "]"
    """)))  # fmt: skip

    def is_legal(text: str) -> bool:
        at = walk.start
        for byte in text.encode():
            if at != DEAD:
                at = walk.next(at, byte)
        return at != DEAD and walk.is_accepting(at)

    assert all(map(is_legal, ("[7]", "[1,7,2]", "[[7],7]")))
    assert not any(map(is_legal, ("[1,2]", "[[7],1]", "[]")))


def test_12_free_answers_as_the_notebook_counted_them() -> None:
    [path] = Path(ROOT, "solutions").glob("12-*/lab.ipynb")
    recorded, text = path.read_text(encoding="utf-8"), chapter("12", "00-guide")
    for line, sentence in (
        ("free at 0.7: 8 of 8 ended, 8 are JSON, 0 are", "all eight answers are JSON, and none"),
        (
            "free at 1.5: 8 of 8 ended, 5 are JSON, 1 are",
            "At 1.5 three of eight are\nnot even JSON",
        ),
    ):
        assert line in recorded and sentence in text, line
