"""Engines with a connector say what an engine without one says, and compute less for it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams
from mini_vllm.core.scheduler_output import SchedulerOutput
from mini_vllm.kv_transfer.base import KVConnectorBase_V1, KVConnectorMetadata
from mini_vllm.kv_transfer.factory import KVConnectorFactory
from mini_vllm.kv_transfer.identity import prompt_identity
from mini_vllm.kv_transfer.layout import from_bytes, gather_blocks, scatter_blocks, to_bytes
from mini_vllm.kv_transfer.multi import MultiConnector
from mini_vllm.outputs import RequestOutput
from mini_vllm.request import Request
from tests.engine.pace import PATIENCE

SIZE = 8
LONG = list(range(300, 340))
PROMPTS = [LONG, [*LONG[:32], 9, 9, 9], [7, 8, 9], list(range(100, 132))]
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def make_llm(kv_transfer_config: dict[str, Any] | None = None, **options: Any) -> LLM:
    usual: dict[str, Any] = {
        "dtype": "float32", "block_size": SIZE, "num_gpu_blocks": 64, "max_model_len": 96,
    }  # fmt: skip
    usual |= options
    return LLM("storyteller-draft", kv_transfer_config=kv_transfer_config, **usual)


def config(name: str, policy: str = "recompute", **extra: Any) -> dict[str, Any]:
    return {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": extra,
    }


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@cache
def plain() -> list[list[int]]:
    return tokens(make_llm().generate(PROMPTS, GREEDY, use_tqdm=False))


def run(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[RequestOutput]:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    llm.engine.core.scheduler.check_integrity()
    return outputs


# ------------------------------------------------------------------ layout


def test_blocks_come_back_as_they_were() -> None:
    torch.manual_seed(0)
    layers = [torch.randn(2, 6, 4, 3, 5) for _ in range(3)]
    before = [layer.clone() for layer in layers]
    blocks = gather_blocks(layers, [4, 1])
    assert blocks.shape == (2, 3, 2, 4, 3, 5)
    assert torch.equal(blocks[0, 2, 1], layers[2][1, 4])
    for layer in layers:
        layer.zero_()
    assert blocks.abs().sum() > 0, "a view is no copy"
    scatter_blocks(from_bytes(to_bytes(blocks), layers), layers, [2, 5])
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer[:, [2, 5]], old[:, [4, 1]])
        assert layer[:, [0, 1, 3, 4]].abs().sum() == 0
    with pytest.raises(ValueError, match="bytes"):
        from_bytes([b"short"], layers)
    with pytest.raises(ValueError, match="2 blocks for 1 ids"):
        scatter_blocks(blocks, layers, [3])


# ------------------------------------------------------------------ a store


def test_a_second_engine_finds_what_the_first_has_computed(tmp_path: Path) -> None:
    store = config("SharedStorageConnector", shared_storage_path=str(tmp_path))
    first = run(make_llm(store))
    assert tokens(first) == plain()
    second = run(make_llm(store))
    assert tokens(second) == plain()
    assert [output.num_cached_tokens for output in second] == [40, 32, 0, 32]


@pytest.mark.parametrize(
    "other",
    [
        {"block_size": 4},
        {"kv_cache_dtype": "int8_per_token_head"},
        {"dtype": "bfloat16"},
        {"load_format": "dummy"},
        {"quantization": "int8"},
        {"hf_overrides": {"rope_theta": 77.0}},
    ],
    ids=str,
)
def test_another_model_or_format_finds_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    store = config("SharedStorageConnector", shared_storage_path=str(tmp_path))
    run(make_llm(store))
    foreign = run(make_llm(store, **other), [LONG])
    assert foreign[0].num_cached_tokens == 0


def test_a_salt_keeps_strangers_apart(tmp_path: Path) -> None:
    store = config("SharedStorageConnector", shared_storage_path=str(tmp_path))
    prompts = [{"prompt_token_ids": LONG, "cache_salt": salt} for salt in ("mine", "yours")]
    make_llm(store).generate(prompts[:1], GREEDY, use_tqdm=False)
    outputs = make_llm(store).generate(prompts, GREEDY, use_tqdm=False)
    assert [output.num_cached_tokens for output in outputs] == [40, 0]


def damage(folder: Path, how: str) -> int:
    paths = sorted(folder.rglob("*.kv"))
    for path in paths[1::2]:
        content = bytearray(path.read_bytes())
        if how == "flipped":
            content[-7] ^= 1
        path.write_bytes(content[:-5] if how == "cut" else content)
    if how == "swapped":
        contents = [path.read_bytes() for path in paths]
        for path, content in zip(paths, reversed(contents), strict=True):
            path.write_bytes(content)
    return len(paths)


@pytest.mark.parametrize("how", ["flipped", "cut", "swapped"])
@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_damaged_files_are_computed_again_or_refused(tmp_path: Path, how: str, policy: str) -> None:
    store = config("SharedStorageConnector", policy, shared_storage_path=str(tmp_path))
    run(make_llm(store))
    assert damage(tmp_path, how) > 8
    llm = make_llm(store)
    outputs = run(llm)
    for output, right in zip(outputs, plain(), strict=True):
        if output.error is None:
            assert output.outputs[0].token_ids == right
        else:
            assert policy == "fail" and "did not arrive" in output.error
    assert any(output.error for output in outputs) == (policy == "fail")
    again = run(llm)
    assert tokens(again) == plain(), "what was bad is gone"


def test_a_store_has_its_size(tmp_path: Path) -> None:
    block = make_llm().engine.core.executor.call("kv_context", 64)[0].bytes_per_block
    room = 4 * (block + 100)
    store = config("SharedStorageConnector", shared_storage_path=str(tmp_path), max_bytes=room)
    assert tokens(run(make_llm(store))) == plain()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) <= room
    assert tokens(run(make_llm(store))) == plain()


def test_roles(tmp_path: Path) -> None:
    store = config("SharedStorageConnector", shared_storage_path=str(tmp_path))
    run(make_llm(store | {"kv_role": "kv_consumer"}))
    assert not list(tmp_path.rglob("*.kv"))
    run(make_llm(store | {"kv_role": "kv_producer"}))
    outputs = run(make_llm(store | {"kv_role": "kv_producer"}))
    assert outputs[0].num_cached_tokens == 0
    outputs = run(make_llm(store | {"kv_role": "kv_consumer"}))
    assert outputs[0].num_cached_tokens == 40


# ------------------------------------------------------------------ the host


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_what_the_device_evicts_the_host_still_has(policy: str) -> None:
    host = config("OffloadingConnector", cpu_bytes_to_use=1 << 22, eviction_policy=policy)
    llm = make_llm(host, num_gpu_blocks=8)
    assert tokens(run(llm)) == plain()
    run(llm, [list(range(600, 640))])
    again = run(llm)
    assert tokens(again) == plain()
    assert [output.num_cached_tokens for output in again] == [40, 32, 0, 32]
    manager = llm.engine.core.kv.connector.manager  # type: ignore[union-attr]
    manager.check_integrity()


def test_a_tiny_host_changes_no_token() -> None:
    block = make_llm().engine.core.executor.call("kv_context", 64)[0].bytes_per_block
    llm = make_llm(config("OffloadingConnector", cpu_bytes_to_use=3 * block), num_gpu_blocks=8)
    for _ in range(3):
        assert tokens(run(llm)) == plain()
    with pytest.raises(ValueError, match=f"a block of this model takes {block} bytes"):
        make_llm(config("OffloadingConnector", cpu_bytes_to_use=block - 1))


def test_the_kv_that_comes_back_is_bit_equal() -> None:
    llm = make_llm(config("OffloadingConnector", cpu_bytes_to_use=1 << 22), num_gpu_blocks=8)
    layers = llm.engine.core.model_runner.kv_cache.layers
    run(llm, [LONG])
    ids = [
        next(iter(llm.engine.core.scheduler.kv_cache_manager.block_pool.cached_blocks[h]))
        for h in llm_hashes(llm, LONG)
    ]
    before = gather_blocks(layers, ids)
    run(llm, [list(range(600, 640))])
    run(llm, [LONG])
    pool = llm.engine.core.scheduler.kv_cache_manager.block_pool
    ids = [next(iter(pool.cached_blocks[h])) for h in llm_hashes(llm, LONG)][:4]
    assert torch.equal(gather_blocks(layers, ids), before[:4])


def test_the_next_turn_finds_the_answer_of_the_last() -> None:
    """Blocks that decoding has filled are on the host, too (vllm #33881)."""
    llm = make_llm(config("OffloadingConnector", cpu_bytes_to_use=1 << 22), num_gpu_blocks=12)
    params = SamplingParams(temperature=0, max_tokens=26, ignore_eos=True)
    (first,) = llm.generate([LONG], params, use_tqdm=False)
    run(llm, [list(range(600, 680))])
    (second,) = run(llm, [LONG + list(first.outputs[0].token_ids) + [5]])
    assert second.num_cached_tokens == 64, "40 of the prompt, 24 of the answer"


def llm_hashes(llm: LLM, prompt: list[int]) -> list[bytes]:
    from mini_vllm.request import Request

    request = Request("x", prompt)
    request.set_block_hasher(llm.engine.core.scheduler.kv_cache_manager.block_hasher)
    return request.block_hashes


# ------------------------------------------------------------------ from engine to engine


def disaggregated(
    prefill: LLM, decode: LLM, prompt: list[int], params: SamplingParams = GREEDY
) -> RequestOutput:
    asked = SamplingParams(
        temperature=0,
        max_tokens=1,
        extra_args={"kv_transfer_params": {"do_remote_decode": True}},
    )
    answer = prefill.generate([prompt], asked, use_tqdm=False)[0]
    wanted = params.clone()
    wanted.extra_args = {"kv_transfer_params": answer.kv_transfer_params}
    return decode.generate([prompt], wanted, use_tqdm=False)[0]


def pair(policy: str = "fail", **extra: Any) -> tuple[LLM, LLM]:
    p2p = config("P2pTcpConnector", policy, **extra)
    return make_llm(p2p | {"kv_role": "kv_producer"}), make_llm(p2p | {"kv_role": "kv_consumer"})


def let_go(llm: LLM) -> int:
    """Steps until nothing is held any more; the free blocks then."""
    end = time.monotonic() + PATIENCE
    while llm.engine.core.scheduler.held and time.monotonic() < end:  # type: ignore[attr-defined]
        llm.engine.step()
    return llm.engine.core.scheduler.kv_cache_manager.num_free_blocks


def test_one_engine_goes_on_with_what_another_has_computed() -> None:
    prefill, decode = pair()
    for prompt, right in zip(PROMPTS, plain(), strict=True):
        output = disaggregated(prefill, decode, prompt)
        assert (output.error, output.outputs[0].token_ids) == (None, right)
        assert output.num_cached_tokens == len(prompt)
    assert let_go(prefill) == 63
    decode.engine.core.scheduler.check_integrity()


def test_several_completions_fetch_once() -> None:
    prefill, decode = pair()
    params = SamplingParams(temperature=0.8, seed=3, n=3, max_tokens=4, ignore_eos=True)
    output = disaggregated(prefill, decode, LONG, params)
    alone = make_llm().generate([LONG], params, use_tqdm=False)[0]
    assert [c.token_ids for c in output.outputs] == [c.token_ids for c in alone.outputs]
    assert let_go(prefill) == 63


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize(
    "lie",
    [
        {"remote_engine_id": "another"},
        {"remote_lease": "old"},
        {"remote_request_id": "another"},
        {"remote_block_ids": [61, 62, 60, 59, 58]},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_what_is_not_held_for_me_i_do_not_get(policy: str, lie: dict[str, Any]) -> None:
    prefill, decode = pair(policy)
    asked = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}
    )
    told = prefill.generate([LONG], asked, use_tqdm=False)[0].kv_transfer_params
    assert told is not None
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": told | lie}
    output = decode.generate([LONG], params, use_tqdm=False)[0]
    if policy == "fail":
        assert output.outputs[0].finish_reason == "error"
        assert "40 prompt tokens" in str(output.error)
    else:
        assert output.outputs[0].token_ids == plain()[0]
    assert decode.engine.core.scheduler.kv_cache_manager.num_free_blocks == 63


@pytest.mark.parametrize("policy", ["fail", "recompute"])
@pytest.mark.parametrize(
    ("kept", "wanted"),
    [
        ({}, {"prompt_token_ids": [*LONG[:-1], 7]}),
        ({}, {"prompt_token_ids": list(range(100, 140))}),
        ({"cache_salt": "ana"}, {}),
        ({}, {"cache_salt": "ana"}),
        ({"cache_salt": "ana"}, {"cache_salt": "ben"}),
    ],
)
def test_kv_of_another_prompt_as_long_is_refused(
    policy: str, kept: dict[str, Any], wanted: dict[str, Any]
) -> None:
    prefill, decode = pair(policy)
    prompt: dict[str, Any] = {"prompt_token_ids": LONG}
    asked = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}
    )
    told = prefill.generate([prompt | kept], asked, use_tqdm=False)[0].kv_transfer_params
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": told}
    with pytest.raises(ValueError, match="KV of other tokens, or with another adapter"):
        decode.generate([prompt | wanted], params, use_tqdm=False)
    assert let_go(prefill) == 63, "the prefill engine was told to free the KV"


def test_a_prompts_name_tells_adapters_salts_and_pictures_apart() -> None:
    def name(tokens: list[int] = LONG, **own: Any) -> str:
        return prompt_identity(Request("r", tokens, GREEDY, **own))

    pictures = [[(4, 8, "cat")], [(4, 8, "dog")], [(5, 8, "cat")], [(4, 8, "cat"), (20, 8, "cat")]]
    names = [
        name(), name(LONG[:-1]), name(LONG[::-1]),
        name(lora_name="pirate@1"), name(lora_name="pirate@2"),
        name(cache_salt="pirate@1"), name(lora_name="pirate@1", cache_salt="a"),
        *(name(mm_hashes=places) for places in pictures),
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert name(lora_name="pirate@1") == name(lora_name="pirate@1")


def test_another_models_kv_is_refused() -> None:
    prefill, _ = pair()
    p2p = config("P2pTcpConnector", "recompute") | {"kv_role": "kv_consumer"}
    other = make_llm(p2p, load_format="dummy")
    output = disaggregated(prefill, other, LONG)
    assert output.error is None and output.num_cached_tokens == 0


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_a_peer_that_is_gone_costs_its_deadline(policy: str) -> None:
    prefill, decode = pair(policy, transfer_timeout_s=0.3)
    asked = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}
    )
    told = prefill.generate([LONG], asked, use_tqdm=False)[0].kv_transfer_params
    prefill.engine.core.shutdown()
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": told}
    output = decode.generate([LONG], params, use_tqdm=False)[0]
    assert (output.error is not None) == (policy == "fail")
    if policy == "recompute":
        assert output.outputs[0].token_ids == plain()[0]
    assert decode.engine.core.scheduler.kv_cache_manager.num_free_blocks == 63


def test_a_lease_ends() -> None:
    prefill, decode = pair("recompute", kv_lease_duration=0.05)
    asked = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}
    )
    told = prefill.generate([LONG], asked, use_tqdm=False)[0].kv_transfer_params
    prefill.engine.step()
    time.sleep(0.1)
    assert let_go(prefill) == 63
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": told}
    output = decode.generate([LONG], params, use_tqdm=False)[0]
    assert (output.num_cached_tokens, output.outputs[0].token_ids) == (0, plain()[0])


def test_a_request_that_takes_no_kv_releases_it() -> None:
    """A producer computes the prompt itself, and the KV is not held until its lease ends."""
    (prefill, _), (other, _) = pair(), pair()
    output = disaggregated(prefill, other, LONG)
    assert (output.num_cached_tokens, output.outputs[0].token_ids) == (0, plain()[0])
    assert let_go(prefill) == 63


def test_a_request_that_ends_before_fetching_releases_the_kv() -> None:
    prefill, decode = pair()
    asked = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}
    )
    told = prefill.generate([LONG], asked, use_tqdm=False)[0].kv_transfer_params
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": told}
    decode.engine.add_request("r", LONG, params)
    decode.engine.abort_requests("r")
    assert let_go(prefill) == 63


def with_bad_token(params: SamplingParams) -> list[int]:
    params.stop_token_ids = [10**6]
    return LONG


def without_blocks(params: SamplingParams) -> list[int]:
    assert params.extra_args is not None
    del params.extra_args["kv_transfer_params"]["remote_block_ids"]
    return LONG


def with_both(params: SamplingParams) -> list[int]:
    assert params.extra_args is not None
    params.extra_args["kv_transfer_params"]["do_remote_decode"] = True
    return LONG


@pytest.mark.parametrize(
    "mistake",
    [
        lambda params: list(range(300, 500)),
        lambda params: [-1, 5],
        lambda params: LONG[:9],
        lambda params: {"prompt_token_ids": LONG, "cache_salt": 7},
        lambda params: {"prompt_token_ids": LONG, "multi_modal_data": {"image": "a.png"}},
        with_bad_token,
        without_blocks,
        with_both,
    ],
    ids=["long", "no token", "other prompt", "salt", "image", "parameter", "no blocks", "both"],
)
def test_a_refused_request_releases_the_kv(mistake: Callable[[SamplingParams], Any]) -> None:
    """A request that is wrong fetches nothing, and its prompt's KV is held no longer."""
    prefill, decode = pair()
    asked = SamplingParams(
        max_tokens=1, extra_args={"kv_transfer_params": {"do_remote_decode": True}}
    )
    told = prefill.generate([LONG], asked, use_tqdm=False)[0].kv_transfer_params
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": dict(told or {})}
    with pytest.raises(ValueError):
        decode.engine.add_request("r", mistake(params), params)
    assert not decode.engine.has_unfinished_requests()
    assert let_go(prefill) == 63


# ------------------------------------------------------------------ several, and one's own


def test_several_connectors_as_one(tmp_path: Path) -> None:
    inner = [
        {"kv_connector": "OffloadingConnector",
         "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 22}},
        {"kv_connector": "SharedStorageConnector",
         "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)}},
    ]  # fmt: skip
    both = config("MultiConnector", connectors=inner)
    llm = make_llm(both, num_gpu_blocks=8)
    assert tokens(run(llm)) == plain()
    assert tokens(run(llm)) == plain()
    other = run(make_llm(both))
    assert tokens(other) == plain()
    assert other[0].num_cached_tokens == 40, "from the store"


def test_blocks_stay_until_all_have_sent_them() -> None:
    class Sender(KVConnectorBase_V1):
        def __init__(self, steps: int) -> None:
            self.steps = steps

        def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
            return True, None

        def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, None]:
            self.steps -= 1
            return ({"r"} if self.steps == 0 else None), None

    multi = MultiConnector.__new__(MultiConnector)
    multi.parts = [Sender(1), Sender(3)]
    multi.chosen, multi.extra_sends = {}, {}
    from collections import Counter

    from mini_vllm.request import Request

    multi.sends_due = Counter()
    assert multi.request_finished(Request("r", [1]), [1]) == (True, None)
    multi.sends_due.update(multi.extra_sends)
    assert [multi.get_finished(set())[0] for _ in range(3)] == [set(), set(), {"r"}]


class Replay(KVConnectorBase_V1):
    """A connector of one's own: it keeps blocks by hash, and loads before the forward pass."""

    kept: dict[bytes, torch.Tensor] = {}
    lose: set[int] = set()
    calls: list[str] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests: dict[str, Any] = {}
        self.loads: list[tuple[int, bytes]] = []
        self.saves: list[tuple[int, bytes]] = []
        self.invalid: set[int] = set()

    def get_num_new_matched_tokens(self, request: Any, num_computed: int) -> tuple[int, bool]:
        self.requests[request.request_id] = request
        hashes = request.block_hashes[num_computed // SIZE : (request.num_tokens - 1) // SIZE]
        found = 0
        while found < len(hashes) and hashes[found] in self.kept:
            found += 1
        return found * SIZE, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external: int) -> None:
        ids = blocks.get_block_ids()
        count = num_external // SIZE
        first = request.num_computed_tokens // SIZE - count if count else 0
        if count:
            pairs = list(zip(ids, request.block_hashes, strict=False))
            self.loads += pairs[first : first + count]

    def build_connector_meta(self, output: SchedulerOutput) -> KVConnectorMetadata:
        meta = KVConnectorMetadata()
        meta.loads, self.loads = self.loads, []  # type: ignore[attr-defined]
        meta.saves = [  # type: ignore[attr-defined]
            pair
            for new in output.scheduled_new_reqs
            for pair in zip(new.block_ids, self.requests[new.req_id].block_hashes, strict=False)
        ]
        return meta

    def register_kv_caches(self, kv_caches: Any) -> None:
        self.layers = list(kv_caches.values())

    def start_load_kv(self) -> None:
        for block_id, name in self.metadata.loads:  # type: ignore[attr-defined]
            if len(self.lose) > 0 and self.lose.pop() >= 0:
                self.invalid.add(block_id)
                for layer in self.layers:
                    layer[:, block_id] = 77.0
                continue
            scatter_blocks(self.kept[name], self.layers, [block_id])

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any) -> None:
        self.calls.append(layer_name)

    def wait_for_save(self) -> None:
        if not self.invalid:
            for block_id, name in self.metadata.saves:  # type: ignore[attr-defined]
                self.kept.setdefault(name, gather_blocks(self.layers, [block_id]))

    def get_block_ids_with_load_errors(self) -> set[int]:
        invalid, self.invalid = self.invalid, set()
        return invalid


@pytest.mark.parametrize("budget", [256, 5])
def test_tokens_computed_over_lost_kv_are_thrown_away(budget: int) -> None:
    """The worker has sampled by then, and has to forget it (vllm #49250)."""
    Replay.kept.clear()
    own = config("Replay") | {"kv_connector_module_path": __name__}
    run(make_llm(own))
    assert Replay.kept and Replay.calls[:2] == [f"model.layers.{i}.self_attn" for i in (0, 1)]
    for sampling in (GREEDY, SamplingParams(temperature=0.9, seed=5, max_tokens=6)):
        right = make_llm().generate(PROMPTS, sampling, use_tqdm=False)
        llm = make_llm(own, max_num_batched_tokens=budget)
        Replay.lose.update({1, 2})
        llm.enqueue(PROMPTS, sampling, use_tqdm=False)
        for _ in range(100):
            llm.engine.step()
        assert not llm.engine.has_unfinished_requests(), "nothing is computed again and again"
        assert not Replay.lose, "some were lost"
        assert tokens(llm.wait_for_completion(use_tqdm=False)) == tokens(right)
        Replay.lose.clear()


def test_a_connector_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM's plugins do it; then its name is enough."""
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))
    KVConnectorFactory.register_connector("Replay", __name__, "Replay")
    with pytest.raises(ValueError, match="'Replay' is registered already"):
        KVConnectorFactory.register_connector("Replay", __name__, "Other")
    Replay.kept.clear()
    run(make_llm(config("Replay")))
    assert Replay.kept


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"kv_connector": "X", "kv_role": "kv_both"}, "kv_connector is 'X'; known are"),
        ({"kv_connector": "SharedStorage", "kv_role": "kv_both"}, "did you mean SharedStorageC"),
        ({"kv_connector": "MultiConnector"}, "kv_role is not set; it must be one of kv_producer"),
        (config("SharedStorageConnector"), "shared_storage_path is None"),
        (config("SharedStorageConnector", shared_storage_path="/proc/no"), "cannot be made"),
        (config("SharedStorageConnector", storage_path="x"), "did you mean shared_storage_path"),
        (config("SharedStorageConnector", shared_storage_path="x", max_bytes=9), "max_bytes is 9"),
        (config("OffloadingConnector"), "cpu_bytes_to_use is None"),
        (config("OffloadingConnector", cpu_bytes_to_use=9.5), "cpu_bytes_to_use is 9.5"),
        (config("OffloadingConnector", cpu_bytes_to_use=9, eviction_policy="fifo"), "lru, arc"),
        (config("P2pTcpConnector", transfer_timeout_s=0), "transfer_timeout_s is 0"),
        (config("P2pTcpConnector", transfer_timeout_s=math.nan), "transfer_timeout_s is nan"),
        (config("P2pTcpConnector", kv_lease_duration=math.inf), "more than 0 and finite"),
        (config("P2pTcpConnector", port=-4), "port is -4"),
        (config("P2pTcpConnector", host=5), "host is 5"),
        (config("P2pTcpConnector") | {"engine_id": 5}, "engine_id is 5; it must be a name"),
        (config("SharedStorageConnector", shared_storage_path="a\0b"), "shared_storage_path is 'a"),
        (config("OffloadingConnector", cpu_bytes_to_use=1 << 60), f"cpu_bytes_to_use is {1 << 60}"),
        (config("dumps") | {"kv_connector_module_path": "json"}, "'dumps' of json is no connector"),
        (config("MultiConnector"), "connectors is None"),
        (config("MultiConnector", connectors=[{"kv_connector": "Y"}]), "kv_connector is 'Y'"),
        (config("MultiConnector", connectors=[config("P2pTcpConnector")] * 2), "keep one of them"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(
    wanted: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        make_llm(wanted)


REMOTE = {
    "do_remote_prefill": True, "remote_engine_id": "e", "remote_request_id": "r",
    "remote_host": "127.0.0.1", "remote_port": 1, "remote_block_ids": [1], "remote_num_tokens": 40,
}  # fmt: skip


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("yes", "must be an object"),
        ({"do_remote_prefill": True, "do_remote_decode": True}, "set one of them"),
        ({"do_remote_prefill": True}, "remote_engine_id is None"),
        (REMOTE | {"remote_block_ids": ["a"]}, "remote_block_ids is"),
        (REMOTE, "has 1 remote_block_ids for 40 tokens"),
        (REMOTE | {"remote_num_tokens": 8}, "the prompt has 40 tokens"),
        (REMOTE | {"remote_block_ids": [1, 2, 3, 4, 5], "remote_prompt": "x"}, "remote_prompt 'x'"),
    ],
)
def test_bad_params_are_named_and_fail_only_their_request(params: Any, message: str) -> None:
    llm = make_llm(config("P2pTcpConnector"))
    bad = GREEDY.clone()
    bad.extra_args = {"kv_transfer_params": params}
    outputs = llm.generate([LONG, PROMPTS[2]], [bad, GREEDY], use_tqdm=False)
    assert message in str(outputs[0].error)
    assert outputs[1].outputs[0].token_ids == plain()[2]


def test_params_without_a_connector_are_served_here(caplog: pytest.LogCaptureFixture) -> None:
    params = GREEDY.clone()
    params.extra_args = {"kv_transfer_params": {"do_remote_decode": True}}
    output = make_llm().generate([LONG], params, use_tqdm=False)[0]
    assert output.outputs[0].token_ids == plain()[0] and output.kv_transfer_params is None
    assert "no KV connector" in caplog.text
