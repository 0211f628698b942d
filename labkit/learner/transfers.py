"""What `make run-15` measures: one prompt whose KV comes from everywhere, and its answer's time."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

LENGTH, ANSWER = 960, 4
ASKED = [300 + token % 700 for token in range(LENGTH)]
OTHER = [400 + token % 700 for token in range(LENGTH)]
"""What takes the asked prompt's place on the device."""
ABOUT_TRANSFERS = (
    f"a prompt of {LENGTH} tokens, {ANSWER} more: computed; then with KV from the host, a store, "
    "a damaged store and another engine; milliseconds, and prompt tokens that were there"
)


def measure_transfers() -> dict[str, Any]:
    """The same answer with KV from everywhere, a router's choice and the length that pays."""
    begin = time.perf_counter()
    answers: dict[str, tuple[Any, float]] = {}
    with tempfile.TemporaryDirectory(prefix="labkit-kv-") as folder:
        answers["computed"] = alone()
        answers["from the host"] = from_the_host()
        answers |= from_a_store(folder)
    answers["from an engine"] = from_another_engine()
    rows = [
        [title, f"{seconds * 1e3:.0f} ms, {output.num_cached_tokens}"]
        for title, (output, seconds) in answers.items()
    ]
    return {
        "tokens": [list(output.outputs[0].token_ids) for output, _ in answers.values()],
        "names": list(answers),
        "errors": [str(output.error) for output, _ in answers.values() if output.error],
        "rows": [*rows, ["the router picks", routed()], ["pays from", break_even()]],
        "seconds": time.perf_counter() - begin,
    }


def engine(connector: str = "", role: str = "kv_both", blocks: int = 160, **extra: Any) -> Any:
    from mini_vllm import LLM

    transfer = {
        "kv_connector": connector,
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    return LLM(
        "storyteller",
        dtype="float32",
        max_model_len=1024,
        num_gpu_blocks=blocks,
        kv_transfer_config=transfer if connector else None,
    )


def ask(llm: Any, prompt: list[int] = ASKED, **options: Any) -> tuple[Any, float]:
    """The answer, and the seconds that it took."""
    from mini_vllm import SamplingParams

    params = SamplingParams(
        **{"temperature": 0.0, "max_tokens": ANSWER, "ignore_eos": True} | options
    )
    begin = time.perf_counter()
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    return output, time.perf_counter() - begin


def alone() -> tuple[Any, float]:
    llm = engine()
    ask(llm, OTHER)  # warms up
    return ask(llm)


def from_the_host() -> tuple[Any, float]:
    """A device with room for one prompt and a bit, and a host with room for both."""
    llm = engine("OffloadingConnector", blocks=70, cpu_bytes_to_use=1 << 24)
    for prompt in (ASKED, OTHER):
        ask(llm, prompt)
    return ask(llm)


def from_a_store(folder: str) -> dict[str, tuple[Any, float]]:
    """A second engine finds what the first has written; a third, what was then damaged."""
    first = engine("SharedStorageConnector", shared_storage_path=folder)
    ask(first)
    first.shutdown()
    answers = {}
    for title in ("from a store", "a damaged store"):
        llm = engine("SharedStorageConnector", shared_storage_path=folder)
        ask(llm, OTHER)
        answers[title] = ask(llm)
        llm.shutdown()
        for path in sorted(Path(folder).rglob("*.kv"))[::5]:
            content = bytearray(path.read_bytes())
            content[-1] ^= 1
            path.write_bytes(content)
    return answers


def from_another_engine() -> tuple[Any, float]:
    """One engine computes the prompt, the other goes on with it."""
    prefill = engine("P2pTcpConnector", "kv_producer")
    decode = engine("P2pTcpConnector", "kv_consumer")
    wanted = {"kv_transfer_params": {"do_remote_decode": True}}
    computed, _ = ask(prefill, max_tokens=1, extra_args=wanted)
    ask(decode, OTHER)
    told = {"kv_transfer_params": computed.kv_transfer_params}
    answer = ask(decode, extra_args=told)
    for llm in (decode, prefill):
        llm.shutdown()
    return answer


def routed() -> str:
    """One worker has the whole prompt and a queue of half of it, the other nothing at all."""
    from mini_vllm.kv_transfer.events import BlockStored
    from mini_vllm.kv_transfer.routing import PrefixIndex, choose_worker

    index, hashes = PrefixIndex(), [bytes([number]) * 32 for number in range(LENGTH // 16)]
    index.apply("warm", [BlockStored(hashes, None, ASKED, 16)])
    workers = ["cold", "warm"]
    scores = [index.score(worker, hashes) for worker in workers]
    return workers[choose_worker(scores, [0, LENGTH // 2], LENGTH, 16)]


def break_even() -> str:
    """Over 1 GB/s with 5 ms for the first byte, where 5,000 tokens a second can be computed."""
    from mini_vllm.kv_transfer.economics import SHAPES, break_even_tokens, kv_bytes_per_token

    size = kv_bytes_per_token(SHAPES["storyteller"])
    return f"{break_even_tokens(size, 1e9, 5000.0, 5e-3):.0f} tokens"
