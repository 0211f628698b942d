"""Time to the first token with and without a second tier, and where loading meets computing.

    python -m benchmarks.bench_offload                        the bundled model
    python -m benchmarks.bench_offload --shape 0.6B           a model of that shape, random weights
    python -m benchmarks.bench_offload --save                 ... and keep the result

A pool of blocks holds one prompt. Another prompt throws it out; then it comes again, and its KV is
computed, or loaded from the host. Medians of several rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from mini_vllm import LLM, SamplingParams
from mini_vllm.kv_transfer.economics import table

RESULTS = Path(__file__).parent / "results"
BLOCK = 16
QWEN_06B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 3072, "vocab_size": 4096, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "hidden_act": "silu",
    "torch_dtype": "float32", "eos_token_id": 0,
}  # fmt: skip
"""Qwen3-0.6B's layers with a smaller vocabulary, which no prefill needs."""


def ttft(llm: LLM, prompt: list[int]) -> tuple[float, int]:
    """Seconds to the first token, and tokens that were not computed."""
    params = SamplingParams(temperature=0, max_tokens=1)
    start = time.perf_counter()
    output = llm.generate([prompt], params, use_tqdm=False)[0]
    return time.perf_counter() - start, output.num_cached_tokens


def measure(model: str, length: int, rounds: int, **options: Any) -> dict[str, float]:
    """Median milliseconds to compute and to load a prompt of `length` tokens."""
    usual: dict[str, Any] = {
        "dtype": "float32", "block_size": BLOCK, "max_model_len": length + 2 * BLOCK,
        "num_gpu_blocks": length // BLOCK + 4, "skip_tokenizer_init": True,
        "max_num_batched_tokens": 2048,
    }  # fmt: skip
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": options.pop("host_bytes")},
    }
    llm = LLM(model, kv_transfer_config=config, **(usual | options))
    prompts = [[(7 * i + 13 * p) % 1000 + 1 for i in range(length)] for p in range(2)]
    computed = [ttft(llm, [p + 2000, *prompts[0][1:]])[0] for p in range(rounds)]
    for prompt in prompts:
        ttft(llm, prompt)
    loaded = []
    for number in range(2 * rounds):
        seconds, cached = ttft(llm, prompts[number % 2])
        assert cached >= length - BLOCK, f"only {cached} of {length} tokens came from the host"
        loaded.append(seconds)
    return {
        "tokens": length,
        "computed_ms": 1000 * statistics.median(computed),
        "loaded_ms": 1000 * statistics.median(loaded),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=("bundled", "0.6B"), default="bundled")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help=f"write into {RESULTS.name}/")
    args = parser.parse_args()
    lengths = (64, 256, 1024, 1792) if args.shape == "bundled" else (64, 256, 512)
    with tempfile.TemporaryDirectory() as folder:
        model, bytes_per_token = "storyteller", 4096
        options: dict[str, Any] = {}
        if args.shape == "0.6B":
            (Path(folder) / "config.json").write_text(json.dumps(QWEN_06B), encoding="utf-8")
            model, bytes_per_token = folder, 2 * 114_688  # float32
            options = {"load_format": "dummy"}
        rows = []
        for length in lengths:
            room = 8 * length * bytes_per_token  # for all prompts of the run
            rows.append(measure(model, length, args.rounds, host_bytes=room, **options))
            row = rows[-1]
            gain = row["computed_ms"] / row["loaded_ms"]
            print(f"{length:5} tokens: computed {row['computed_ms']:8.1f} ms, "
                  f"loaded {row['loaded_ms']:7.1f} ms, {gain:5.1f} x")  # fmt: skip
    last = rows[-1]
    rate = 1000 * last["tokens"] / last["computed_ms"]
    print(f"\nPrefill {rate:,.0f} tokens/s. Break-even lengths at 1 ms a trip, for this rate:")
    for name, link, tokens in table(rate):
        print(f"  {name:14} {link:11} {tokens:10.1f}")
    if args.save:
        record = {"machine": platform.platform(), "shape": args.shape, "rows": rows}
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / "offload.json"
        kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        kept = [item for item in kept if item["shape"] != args.shape] + [record]
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        print(f"written {path}")


if __name__ == "__main__":
    main()
