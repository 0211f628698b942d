"""Where speculation pays: predict the speed-up from acceptance and costs, then measure it.

For every method and batch size three numbers are taken apart from each other:

    acceptance   tokens a draft brings on average, counted while the texts are written
    V            time of a forward pass with k + 1 tokens a request, in plain decoding steps
    c            time of drafting one token for every request, in the same unit

The prediction is tokens / (k * c + V). What is measured is wall clock, plain decoding against
speculation in one process and in turns, the best round of each. All texts are greedy, and their
tokens must be equal.

    python -m benchmarks.bench_spec_decode
    python -m benchmarks.bench_spec_decode --methods ngram draft_model --batches 1 4 --rounds 5
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import torch

from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.outputs import RequestOutput
from mini_vllm.spec_decode.proposer import ProposerInput

K = 4
CONTEXT = 160
BLOCK_SIZE = 16
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "model": "storyteller-draft"},
    "medusa": {"method": "medusa", "model": "storyteller-medusa"},
    "eagle": {"method": "eagle", "model": "storyteller-eagle"},
}
HEROES = "fox dog cat owl bear hare mouse duck horse goat".split()
NAMES = "Pip Rex Nina Otto Ada Bruno Lola Max Mia Tom".split()


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("bench_spec_decode", description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--save", action="store_true", help="write results/spec_decode.json")
    options = parser.parse_args(argv)
    results = []
    print(f"{'text':8} {'method':12} {'batch':>5} {'tokens':>7} {'V':>6} {'c':>6} "
          f"{'predicted':>10} {'measured':>9}")  # fmt: skip
    for method in options.methods:
        bench = Bench(method, options)
        for text, batch in itertools.product(options.texts, options.batches):
            row = bench.run(text, batch)
            results.append(row)
            figures = f"{row['tokens_per_draft']:7.2f} {row['V']:6.2f} {row['c']:6.2f}"
            speed = f"{row['predicted']:10.2f} {row['measured']:9.2f}"
            print(f"{text:8} {method:12} {batch:5} {figures} {speed}", flush=True)
    if options.save:
        path = ROOT / "benchmarks" / "results" / "spec_decode.json"
        facts = {"machine": machine(), "k": K, "rounds": options.rounds, "dtype": "float32"}
        write_text(path, json.dumps(facts | {"results": results}, indent=1) + "\n")
        print(f"\nSaved to {path.relative_to(ROOT)}")
    return 0


def machine() -> dict[str, Any]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


# ------------------------------------------------------------------ texts


def stories(llm: LLM, batch: int) -> list[list[int]]:
    """Wishes for a story: text that a model of the same kind guesses well."""
    pairs = list(itertools.product(NAMES, HEROES))[:batch]
    questions = [f"Tell me a story about a {hero} named {name}." for name, hero in pairs]
    return [llm.apply_chat_template([{"role": "user", "content": q}]) for q in questions]


def loops(llm: LLM, batch: int) -> list[list[int]]:
    """Lists that repeat themselves: the case that prompt lookup is made for."""
    text = ", ".join(["one two three four five six"] * 12) + ", one"
    return [llm.tokenizer.encode(text)[index % 7 :] for index in range(batch)]


def noise(llm: LLM, batch: int) -> list[list[int]]:
    """Random tokens, none of them twice: nothing is found in the prompt."""
    draw = Random(0)
    return [draw.sample(range(300, 2000), 100) for _ in range(batch)]


TEXTS: dict[str, Callable[[LLM, int], list[list[int]]]] = {
    "story": stories,
    "loop": loops,
    "noise": noise,
}


# ------------------------------------------------------------------ measuring


class Bench:
    """One method beside plain decoding, in one process."""

    def __init__(self, method: str, options: argparse.Namespace) -> None:
        limits = {"dtype": "float32", "max_model_len": 512, "block_size": BLOCK_SIZE,
                  "num_gpu_blocks": 2048, "enable_prefix_caching": False}  # fmt: skip
        self.method, self.options = method, options
        self.plain = LLM("storyteller", **limits)
        config = METHODS[method] | {"num_speculative_tokens": K}
        self.drafted = LLM("storyteller", speculative_config=config, **limits)
        self.costs: dict[int, tuple[float, float]] = {}

    def run(self, text: str, batch: int) -> dict[str, Any]:
        """Acceptance, costs, prediction and measurement at one size."""
        prompts = TEXTS[text](self.plain, batch)
        params = SamplingParams(temperature=0, max_tokens=self.options.max_tokens, ignore_eos=True)
        best = {}
        outputs: dict[str, list[RequestOutput]] = {}
        for name, llm in (("plain", self.plain), ("drafted", self.drafted)):
            llm.generate(prompts, params, use_tqdm=False)  # warm up
            llm.engine.reset_stats()
            best[name] = float("inf")
        for _ in range(self.options.rounds):
            for name, llm in (("plain", self.plain), ("drafted", self.drafted)):
                start = time.perf_counter()
                outputs[name] = llm.generate(prompts, params, use_tqdm=False)
                best[name] = min(best[name], time.perf_counter() - start)
        same = [
            a.outputs[0].token_ids == b.outputs[0].token_ids
            for a, b in zip(outputs["plain"], outputs["drafted"], strict=True)
        ]
        stats = self.drafted.engine.stats.spec_decode
        assert stats is not None
        drafts_a_step = stats.num_drafts / max(self.drafted.engine.stats.num_steps * batch, 1)
        tokens = 1 + (stats.mean_acceptance_length - 1) * drafts_a_step
        verify, draft = self.costs.setdefault(batch, self.measure_costs(batch))
        cost = K * draft + 1 + (verify - 1) * min(1.0, drafts_a_step)
        return {
            "text": text,
            "method": self.method,
            "batch": batch,
            "tokens_per_draft": tokens,
            "acceptance_rates": stats.acceptance_rates,
            "V": verify,
            "c": draft,
            "predicted": tokens / cost,
            "measured": best["plain"] / best["drafted"],
            "equal_texts": sum(same) / batch,
        }

    @torch.inference_mode()
    def measure_costs(self, batch: int) -> tuple[float, float]:
        """V and c: a verification pass, and one drafted token, in plain decoding steps."""
        one = best_of(lambda: self.forward(batch, 1))
        verify = best_of(lambda: self.forward(batch, K + 1))
        step = self.finished_step(batch)
        speculator: Any = self.drafted.engine.core.model_runner.speculator
        draft = best_of(lambda: speculator.proposer.propose(step))
        return verify / one, draft / K / one

    def forward(self, batch: int, query_len: int) -> None:
        """The target over ``query_len`` new tokens of each request, with their logits."""
        runner = self.plain.engine.core.model_runner
        per_request = -(-(CONTEXT + query_len) // BLOCK_SIZE)
        tables = [[1 + r * per_request + i for i in range(per_request)] for r in range(batch)]
        metadata = AttentionMetadata.from_lists(
            [query_len] * batch, [CONTEXT + query_len] * batch, tables, BLOCK_SIZE
        )
        positions = torch.arange(CONTEXT, CONTEXT + query_len).repeat(batch)
        hidden = runner.run_model(torch.full_like(positions, 400), positions, metadata)
        runner.model.compute_logits(hidden)

    def finished_step(self, batch: int) -> ProposerInput:
        """The end of a decoding step of ``batch`` requests, to draft from."""
        from labkit.inside.drafting import make_step

        requests = [
            {"id": str(r), "tokens": [300 + (7 * r + i) % 900 for i in range(CONTEXT)],
             "computed": CONTEXT - 2, "scheduled": 1, "sampled": 1,
             "blocks": [1 + r * 11 + i for i in range(11)]}
            for r in range(batch)
        ]  # fmt: skip
        step = make_step(requests, BLOCK_SIZE, max_model_len=512)
        width = self.plain.engine.core.model_args.hidden_size
        step.hidden = torch.zeros(batch, width)
        return step


def best_of(run: Callable[[], Any], times: int = 12) -> float:
    """Seconds of the fastest of some calls, after two that nobody counts."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
