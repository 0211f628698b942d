"""The whole engine with adapters: beside peft one by one, and while slots move."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.lora.request import LoRARequest
from tests.engine.lora.adapters import random_tensors, write_adapter

QUESTIONS = ("What is the capital of Italy?", "What is 4 + 5?", "Where does an owl live?")
BUNDLED = [
    LoRARequest(n, i, str(bundled.adapter_path(n))) for i, n in enumerate(bundled.ADAPTERS, 1)
]


def make_llm(**options: Any) -> LLM:
    defaults = dict(dtype="float32", enable_lora=True, max_loras=4, max_cpu_loras=8, block_size=8)
    return LLM("storyteller", **(defaults | options))


def prompts_of(llm: LLM, questions=QUESTIONS) -> list[list[int]]:
    return [llm.apply_chat_template([{"role": "user", "content": q}]) for q in questions]


def greedy(llm: LLM, prompts, loras, max_tokens: int = 12) -> list[list[int]]:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    outputs = llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
    assert all(output.error is None for output in outputs), [o.error for o in outputs]
    return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random adapters of other ranks, projections and scales than the bundled ones."""
    root = tmp_path_factory.mktemp("adapters")
    attention = ("self_attn.q_proj", "self_attn.v_proj")
    mlp = ("mlp.gate_proj", "mlp.down_proj", "self_attn.o_proj")
    rs = dict(
        r=12, lora_alpha=6, use_rslora=True, target_modules=["gate_proj", "down_proj", "o_proj"]
    )
    write_adapter(root / "rs", random_tensors(5, 12, mlp), **rs)
    ranks = {"self_attn.q_proj": 3, "self_attn.k_proj": 5, "mlp.up_proj": 2}
    patterns = dict(
        r=3, lora_alpha=3, rank_pattern={"k_proj": 5, "mlp.up_proj": 2},
        alpha_pattern={"k_proj": 9, r"layers\.[02]\.mlp\.up_proj": 4},
        target_modules=["q_proj", "k_proj", "up_proj"],
    )  # fmt: skip
    write_adapter(root / "patterns", random_tensors(6, ranks, tuple(ranks)), **patterns)
    rs = dict(r=4, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    write_adapter(root / "r4", random_tensors(4, 4, attention), **rs)
    return root


@cache
def by_peft(path: str | None, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """Greedy tokens of one prompt, from Hugging Face and peft, unmerged, in float32."""
    model = peft_model(path)
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(max_tokens):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@cache
def peft_model(path: str | None) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(bundled.path("storyteller"), dtype=torch.float32)
    return (base if path is None else PeftModel.from_pretrained(base, path).float()).eval()


def all_adapters(folder: Path) -> list[LoRARequest | None]:
    extra = ("r4", "rs", "patterns")
    return [
        None,
        *BUNDLED[:2],
        *[LoRARequest(n, 10 + i, str(folder / n)) for i, n in enumerate(extra)],
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        dict(max_loras=5),
        dict(max_loras=1, max_cpu_loras=1),
        dict(max_loras=2, max_cpu_loras=3, max_num_batched_tokens=13),
        dict(max_loras=3, max_cpu_loras=3, num_gpu_blocks=16, max_model_len=64, max_num_seqs=6),
    ],
    ids=["roomy", "one-slot", "chunks-of-13", "tight-pool"],
)
def test_a_mixed_batch_is_peft_one_by_one(folder: Path, options: dict[str, Any]) -> None:
    """Base and five adapters of other ranks, token for token; preempted, chunked and swapped."""
    llm = make_llm(**options)
    pairs = [(p, lora) for p in prompts_of(llm) for lora in all_adapters(folder)]
    found = greedy(llm, [p for p, _ in pairs], [lora for _, lora in pairs])
    wrong = []
    for (prompt, lora), tokens in zip(pairs, found, strict=True):
        expected = by_peft(lora and lora.lora_path, tuple(prompt), 12)
        if tokens != expected:
            wrong.append((lora and lora.lora_name, tokens, expected))
    assert not wrong
    if "num_gpu_blocks" in options:
        assert llm.engine.stats.num_preemptions > 0


def test_adapters_share_a_step() -> None:
    """Base and three adapters take as many forward passes as one request does."""
    llm = make_llm()
    prompt = prompts_of(llm)[0]
    steps = []
    llm.engine.client.observers.append(lambda plan, *_: steps.append(plan.num_scheduled_tokens))
    greedy(llm, [prompt] * 4, [None, *BUNDLED], max_tokens=8)
    assert len(steps) == 8 and all(len(step) == 4 for step in steps)


def test_base_tokens_do_not_change() -> None:
    """enable_lora alone changes nothing, and neither do neighbours with adapters."""
    plain = LLM("storyteller", dtype="float32", block_size=8)
    prompts = prompts_of(plain)
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=3, ignore_eos=True)
    expected = plain.generate(prompts, params, use_tqdm=False)
    for max_loras in (1, 2, 8):
        llm = make_llm(max_loras=max_loras)
        for loras in ([None] * 3, [None, BUNDLED[0], None]):
            found = llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
            for mine, right, lora in zip(found, expected, loras, strict=True):
                if lora is None:
                    assert mine.outputs[0].token_ids == right.outputs[0].token_ids


def test_prompt_logprobs_in_a_mixed_batch() -> None:
    llm = make_llm(enable_prefix_caching=False)
    prompts = prompts_of(llm)
    params = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
    loras = [BUNDLED[0], None, BUNDLED[1]]
    together = llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
    for prompt, lora, mine in zip(prompts, loras, together, strict=True):
        (alone,) = llm.generate([prompt], params, lora_request=lora, use_tqdm=False)
        for left, right in zip(mine.prompt_logprobs[1:], alone.prompt_logprobs[1:], strict=True):
            assert left.keys() == right.keys()
            for token in left:
                assert left[token].logprob == pytest.approx(right[token].logprob, abs=1e-4)


def test_slots_may_move_in_the_middle_of_a_decode() -> None:
    """The batch stays the same while calls throw its adapters out and pin another (H1)."""
    llm = make_llm(max_loras=2)
    prompt = prompts_of(llm)[0]
    expected = greedy(llm, [prompt] * 2, BUNDLED[:2])
    engine = llm.llm_engine
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    outputs = [
        engine.submit(f"r{i}", prompt, params, lora_request=lora)
        for i, lora in enumerate(BUNDLED[:2])
    ]
    manager = engine.core.executor.worker.lora
    for step in range(12):
        if step == 4:  # both leave their slots and come back in the other order
            for key in [key for key in manager.slots if key]:
                manager.remove_adapter(key)
            manager.activate(_loaded(manager, "json", BUNDLED[1]), needed=())
        if step == 8:
            manager.remove_adapter(manager.slots[0])
            manager.activate(_loaded(manager, "polite", BUNDLED[2]), needed=())
        engine.step()
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected


def _loaded(manager: Any, name: str, request: LoRARequest) -> str:
    from mini_vllm.lora.registry import read_adapter

    key = f"{name}@{read_adapter(request.lora_path).digest}"
    manager.add_adapter(key, request.lora_path)
    return key


def test_new_weights_under_an_old_name(tmp_path: Path) -> None:
    """Neither in place nor under another number do they read KV of the old ones (H3)."""
    llm = make_llm()
    prompt = prompts_of(llm)[0] * 3
    path = shutil.copytree(BUNDLED[0].lora_path, tmp_path / "x")
    greedy(llm, [prompt], LoRARequest("x", 1, str(path)))
    other = BUNDLED[1].lora_path
    fresh = greedy(make_llm(), [prompt], LoRARequest("x", 1, other))
    assert greedy(llm, [prompt], LoRARequest("x", 2, other)) == fresh
    shutil.copytree(other, path, dirs_exist_ok=True)
    assert (
        greedy(llm, [prompt], LoRARequest("x", 1, str(path))) != fresh
    )  # known, so not read again
    assert greedy(llm, [prompt], LoRARequest("x", 1, str(path), load_inplace=True)) == fresh
    assert greedy(llm, [prompt], LoRARequest("x", 1, str(path))) == fresh


def test_cached_prefixes_survive_an_eviction() -> None:
    llm = make_llm(max_loras=1, max_cpu_loras=1)
    prompt = prompts_of(llm)[0] * 3
    params = SamplingParams(temperature=0.0, max_tokens=2)

    def cached(lora: LoRARequest | None) -> int:
        (output,) = llm.generate([prompt], params, lora_request=lora, use_tqdm=False)
        return output.num_cached_tokens

    assert [cached(lora) for lora in (None, *BUNDLED)] == [0] * 4  # adapters share no blocks
    assert llm.llm_engine.list_loras() == {3}
    expected = (len(prompt) - 1) // 8 * 8
    assert [cached(lora) for lora in (None, *BUNDLED)] == [expected] * 4


def test_an_adapter_is_read_once(tmp_path: Path) -> None:
    """Not in every step, whatever load_inplace says (H5)."""
    llm = make_llm()
    manager = llm.engine.core.executor.worker.lora
    request = LoRARequest("x", 1, BUNDLED[0].lora_path, load_inplace=True)
    params = SamplingParams(temperature=0.5, max_tokens=8, n=3)
    llm.generate(prompts_of(llm), params, lora_request=request, use_tqdm=False)
    assert manager.num_loads == 1 and manager.num_activations == 1


def bad_adapters(root: Path) -> dict[str, LoRARequest]:
    made = {
        "rank": write_adapter(root / "rank", random_tensors(0, 32)),
        "dora": write_adapter(root / "dora", random_tensors(0), use_dora=True),
        "nan": write_adapter(root / "nan", {n: t / 0 * 0 for n, t in random_tensors(0).items()}),
        "cut": write_adapter(root / "cut", random_tensors(0), weights=b"\x10\x00"),
        "none": str(root / "nowhere"),
    }
    return {name: LoRARequest(name, 50 + i, path) for i, (name, path) in enumerate(made.items())}


def test_a_bad_adapter_fails_its_own_requests_only(tmp_path: Path) -> None:
    llm = make_llm()
    prompt = prompts_of(llm)[0]
    expected = greedy(llm, [prompt] * 2, [None, BUNDLED[0]])
    bad = bad_adapters(tmp_path)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    loras = [None, *bad.values(), BUNDLED[0]]
    outputs = llm.generate([prompt] * len(loras), params, lora_request=loras, use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", *["error"] * 5, "length"]
    assert [list(o.outputs[0].token_ids) for o in (outputs[0], outputs[-1])] == expected
    for name, output in zip(bad, outputs[1:], strict=False):
        assert name in output.error or "nowhere" in output.error, output.error
    assert llm.llm_engine.list_loras() == {1}  # no adapter was evicted


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    """What is loaded is served; what must be read again fails alone (H7)."""
    llm = make_llm(max_loras=1, max_cpu_loras=1)
    prompt = prompts_of(llm)[0]
    path = shutil.copytree(BUNDLED[0].lora_path, tmp_path / "x")
    gone = LoRARequest("gone", 7, str(path))
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    engine = llm.llm_engine
    first = engine.submit("a", prompt, params, lora_request=gone)
    second = engine.submit("b", prompt, params, lora_request=BUNDLED[1])
    shutil.rmtree(path)
    while engine.has_unfinished_requests():
        engine.step()
    assert "must be a local folder" in first.error and first.outputs[0].finish_reason == "error"
    assert second.error is None and len(second.outputs[0].token_ids) == 6
    with pytest.raises(ValueError, match="must be a local folder"):
        engine.add_request("c", prompt, params, lora_request=gone)
    kept = shutil.copytree(BUNDLED[0].lora_path, path)
    greedy(llm, [prompt], LoRARequest("gone", 7, str(kept)))
    shutil.rmtree(path)  # it is loaded, so the folder is not read
    greedy(llm, [prompt], [LoRARequest("gone", 7, str(path))])


def test_calls_of_the_engine() -> None:
    llm = make_llm(max_loras=2, max_cpu_loras=3)
    engine, prompt = llm.llm_engine, prompts_of(llm)[0]
    assert engine.list_loras() == set() and engine.remove_lora(1) is False
    assert engine.add_lora(BUNDLED[0]) is True and engine.list_loras() == {1}
    greedy(llm, [prompt], BUNDLED[1])
    assert engine.list_loras() == {1, 2}
    assert engine.remove_lora(1) is True and engine.list_loras() == {2}
    with pytest.raises(ValueError, match=r"there is no adapter 9; known are 2; add it first"):
        engine.pin_lora(9)
    with pytest.raises(ValueError, match="belongs to 'json'"):
        engine.add_request("x", prompt, SamplingParams(), lora_request=BUNDLED[1])
        engine.add_lora(LoRARequest("other", 2, BUNDLED[0].lora_path))
    engine.abort_requests()


def test_calls_reach_all_engines() -> None:
    """Each has the adapters of its own requests; together they answer as one."""
    llm = make_llm(data_parallel_size=2)
    engine, prompt = llm.llm_engine, prompts_of(llm)[0]
    greedy(llm, [prompt] * 2, BUNDLED[:2])  # one each
    assert engine.list_loras() == {1, 2}
    assert engine.remove_lora(1) is True and engine.remove_lora(1) is False
    assert engine.list_loras() == {2}


def test_pinned_adapters() -> None:
    """They keep their slots; if all are pinned, others end with an error."""
    llm = make_llm(max_loras=2, max_cpu_loras=4)
    engine, prompt = llm.llm_engine, prompts_of(llm)[0]
    manager = engine.core.executor.worker.lora
    for request in BUNDLED:
        engine.add_lora(request)
    assert engine.pin_lora(1) is True
    expected = greedy(make_llm(), [prompt] * 3, BUNDLED)
    assert greedy(llm, [prompt] * 3, BUNDLED) == expected  # two of them share one slot
    assert manager.slots[0].startswith("pirate@")
    engine.pin_lora(2)
    with pytest.raises(ValueError, match="cannot be pinned: all 2 slots are pinned to"):
        engine.pin_lora(3)
    outputs = llm.generate(
        [prompt] * 3, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True),
        lora_request=BUNDLED, use_tqdm=False,
    )  # fmt: skip
    assert [o.outputs[0].finish_reason for o in outputs] == ["length", "length", "error"]
    assert "all 2 are pinned" in outputs[2].error
    engine.remove_lora(1)
    assert greedy(llm, [prompt], BUNDLED[2]) == expected[2:]


def test_a_pin_stays_with_its_number(tmp_path: Path) -> None:
    llm = make_llm(max_loras=1)
    engine = llm.llm_engine
    path = shutil.copytree(BUNDLED[0].lora_path, tmp_path / "x")
    engine.add_lora(LoRARequest("x", 1, str(path)))
    engine.pin_lora(1)
    shutil.copytree(BUNDLED[1].lora_path, path, dirs_exist_ok=True)
    engine.add_lora(LoRARequest("x", 1, str(path), load_inplace=True))
    manager = engine.core.executor.worker.lora
    (pinned,) = manager.pinned
    assert manager.slots == [pinned] and engine.core.adapters.gate.pinned == {pinned}
    assert engine.list_loras() == {1} and list(manager.cpu_cache) == [pinned]


def test_a_removed_adapter_is_served_to_its_end() -> None:
    llm = make_llm()
    engine, prompt = llm.llm_engine, prompts_of(llm)[0]
    expected = greedy(llm, [prompt], BUNDLED[0])
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    output = engine.submit("r", prompt, params, lora_request=BUNDLED[0])
    engine.step()
    assert engine.remove_lora(1) and engine.list_loras() == set()
    while engine.has_unfinished_requests():
        engine.step()
    assert [list(output.outputs[0].token_ids)] == expected and engine.list_loras() == set()


def test_a_name_may_have_any_letters() -> None:
    """The engine's own key is name@digest."""
    folder, prompt = BUNDLED[0].lora_path, "What is the capital of France?"
    llm = LLM("storyteller", dtype="float32", enable_lora=True)
    params = SamplingParams(temperature=0.0, max_tokens=6)
    outputs = llm.generate(
        [prompt, prompt], params, use_tqdm=False,
        lora_request=[BUNDLED[0], LoRARequest("me@home/é b", 7, folder)],
    )  # fmt: skip
    assert outputs[1].error is None
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


def test_words_that_are_no_adapters() -> None:
    with pytest.raises(ValueError, match="enable_lora is 'yes'; it must be True or False"):
        LLM("storyteller", enable_lora="yes")
    llm = LLM("storyteller", dtype="float32", enable_lora=True)
    with pytest.raises(ValueError, match="lora_request is 'pirate'; it must be a LoRARequest"):
        llm.llm_engine.add_lora("pirate")
    with pytest.raises(ValueError, match="lora_request is 'pirate'; it must be a LoRARequest"):
        llm.llm_engine.add_request("a", "Hello", SamplingParams(), lora_request="pirate")
    for wrong in (5, "pirate", {"lora_name": "pirate"}, [5]):
        with pytest.raises(ValueError, match="pass a LoRARequest, or a list"):
            llm.generate("Hello", lora_request=wrong, use_tqdm=False)
    for call in (llm.llm_engine.remove_lora, llm.llm_engine.pin_lora):
        with pytest.raises(ValueError, match=r"lora_id is \[1\]; it must be the whole number"):
            call([1])


@pytest.mark.parametrize("limits", [dict(max_loras=10**9), dict(max_lora_rank=10**9)])
def test_more_slots_than_memory_holds(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"such slots take \d+ MiB, cpu has \d+ MiB free; lower"):
        LLM("storyteller", dtype="float32", enable_lora=True, **limits)


def test_without_enable_lora() -> None:
    llm = LLM("storyteller", dtype="float32")
    with pytest.raises(ValueError, match="lora_request 'pirate' was given, but the engine runs"):
        llm.generate("Hello", lora_request=BUNDLED[0], use_tqdm=False)
    with pytest.raises(ValueError, match="pass enable_lora=True"):
        llm.llm_engine.list_loras()
    with pytest.raises(ValueError, match="2 prompts but 1 lora_requests"):
        llm.generate(["a", "b"], lora_request=[BUNDLED[0]], use_tqdm=False)


def test_slots_take_memory_before_the_cache_is_sized() -> None:
    llm = make_llm(max_loras=2, max_lora_rank=16)
    manager = llm.engine.core.executor.worker.lora
    sizes = sum(16 * (3 * 192 + 512) + 16 * (256 + 192) + 16 * (2 * 192 + 1152) + 16 * (576 + 192)
                for _ in range(4))  # fmt: skip
    assert manager.num_bytes == 4 * 2 * sizes
