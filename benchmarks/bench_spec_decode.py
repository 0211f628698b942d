"""Where speculation pays: predict the speed-up from acceptance and costs, then measure it.

For every method and batch size three numbers are taken apart from each other:

    acceptance   tokens a draft brings on average, counted while the texts are written
    V            time of a forward pass with k + 1 tokens a request, in plain decoding steps
    c            time of drafting one token for every request, in the same unit

The prediction is tokens / (k * c + V). What is measured is wall clock, plain decoding against
speculation in one process and in turns, the best round of each. The texts are seeded, and their
tokens must be equal.

    story   what a model of the same kind guesses well
    loop    one sentence again and again
    noise   random tokens: nothing is ever found, and nothing guessed right

    python -m benchmarks.bench_spec_decode
    python -m benchmarks.bench_spec_decode --save       and writes results/spec_decode.json and the
                                                        picture docs/pictures/speculation.png
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
from pathlib import Path
from random import Random
from typing import Any

import torch

from labkit.course.files import write_text
from labkit.course.root import ROOT
from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import AttentionMetadata
from mini_vllm.outputs import RequestOutput
from mini_vllm.spec_decode.proposer import ProposerInput

PICTURE = ROOT / "docs" / "pictures" / "speculation.png"
K, K_NGRAM = 4, 6
"""Drafts a step, if --k does not say another number; those that cost nothing may be more."""
CONTEXT = 160
BLOCK_SIZE = 16
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "draft_model": {"method": "draft_model", "model": "storyteller-draft"},
    "medusa": {"method": "medusa", "model": "storyteller-medusa"},
    "eagle": {"method": "eagle", "model": "storyteller-eagle"},
}
HEROES = "fox dog cat owl bear hare mouse duck horse goat".split()
FACTS = [
    f"A baby {animal} is called a {young}.\n"
    for animal, young in (("fox", "cub"), ("cat", "kitten"), ("duck", "duckling"), ("bear", "cub"))
]
NAMES = "Pip Rex Nina Otto Ada Bruno Lola Max Mia Tom".split()


def main(argv: Sequence[str]) -> int:
    """Measure and print; see the module's docstring."""
    parser = argparse.ArgumentParser("bench_spec_decode", description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--k", type=int, help=f"drafts a step; default: {K}, of n-grams {K_NGRAM}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--save", action="store_true", help="write results/spec_decode.json")
    options = parser.parse_args(argv)
    results = []
    print(f"{'text':8} {'method':12} {'batch':>5} {'k':>2} {'tokens':>7} {'V':>6} {'c':>6} "
          f"{'predicted':>10} {'measured':>9}")  # fmt: skip
    for method in options.methods:
        bench = Bench(method, options)
        for text, batch in itertools.product(options.texts, options.batches):
            row = bench.run(text, batch)
            results.append(row)
            figures = f"{row['tokens_per_draft']:7.2f} {row['V']:6.2f} {row['c']:6.2f}"
            speed = f"{row['predicted']:10.2f} {row['measured']:9.2f}"
            print(f"{text:8} {method:12} {batch:5} {row['k']:2} {figures} {speed}", flush=True)
    if options.save:
        path = ROOT / "benchmarks" / "results" / "spec_decode.json"
        facts = {"machine": machine(), "rounds": options.rounds, "dtype": "float32"}
        write_text(path, json.dumps(facts | {"results": results}, indent=1) + "\n")
        draw_picture(results, PICTURE)
        print(f"\nSaved to {path.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}")
    missed = [text for text in targets(results) if not text.endswith("reached")]
    print("\n" + "\n".join(targets(results)))
    return 1 if missed else 0


TARGETS = {("ngram", "loop"): 2.2, ("draft_model", "story"): 1.2, ("ngram", "noise"): 0.9}
"""Least speed-up of one request, by method and text."""


def targets(results: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each target that was measured."""
    lines = []
    for row in results:
        wanted = TARGETS.get((row["method"], row["text"]))
        if row["batch"] == 1 and wanted is not None:
            verdict = "reached" if row["measured"] >= wanted else "missed"
            lines.append(
                f"{row['method']} on {row['text']}, one request: {row['measured']:.2f} times as "
                f"fast, at least {wanted} is wanted: {verdict}"
            )
    return lines


def draw_picture(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Speed-up over batch size, a panel for each text: measured lines, predicted crosses."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    texts = list(dict.fromkeys(row["text"] for row in results))
    figure, panels = plt.subplots(
        1, len(texts), figsize=(3.4 * len(texts), 3.2), sharey=True, squeeze=False
    )
    for panel, text in zip(panels[0], texts, strict=True):
        for method in dict.fromkeys(row["method"] for row in results):
            rows = [r for r in results if (r["text"], r["method"]) == (text, method)]
            batches = [row["batch"] for row in rows]
            [line] = panel.plot(batches, [row["measured"] for row in rows], "o-", label=method)
            panel.plot(batches, [row["predicted"] for row in rows], "x", color=line.get_color())
        panel.axhline(1.0, color="gray", linewidth=0.8)
        panel.set(title=text, xscale="log", xlabel="requests", xticks=batches)
        panel.set_xticks(batches, [str(batch) for batch in batches], minor=False)
        panel.minorticks_off()
    panels[0][0].set_ylabel("times as fast as without drafts")
    panels[0][-1].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


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
    """A sentence again and again, until the model goes on with it: prompt lookup is made for it."""
    repeats = [FACTS[index % len(FACTS)] * (4 + index // len(FACTS) % 4) for index in range(batch)]
    return [llm.tokenizer.encode(text) for text in repeats]


def noise(llm: LLM, batch: int) -> list[list[int]]:
    """Random tokens, none of them twice; what follows is drawn so hot that it is random too."""
    draw = Random(0)
    return [draw.sample(range(300, 2000), 100) for _ in range(batch)]


TEXTS: dict[str, Callable[[LLM, int], list[list[int]]]] = {
    "story": stories,
    "loop": loops,
    "noise": noise,
}
TEMPERATURE = {"noise": 100.0}
"""Of a text; the others are greedy."""


# ------------------------------------------------------------------ measuring


class Bench:
    """One method beside plain decoding, in one process."""

    def __init__(self, method: str, options: argparse.Namespace) -> None:
        limits = {"dtype": "float32", "max_model_len": 512, "block_size": BLOCK_SIZE,
                  "num_gpu_blocks": 2048, "enable_prefix_caching": False}  # fmt: skip
        self.method, self.options = method, options
        self.plain = LLM("storyteller", **limits)
        self.k = options.k or (K_NGRAM if method == "ngram" else K)
        config = METHODS[method] | {"num_speculative_tokens": self.k}
        self.drafted = LLM("storyteller", speculative_config=config, **limits)
        self.costs: dict[int, tuple[float, float]] = {}

    def run(self, text: str, batch: int) -> dict[str, Any]:
        """Acceptance, costs, prediction and measurement at one size."""
        prompts = TEXTS[text](self.plain, batch)
        params = [
            SamplingParams(
                temperature=TEMPERATURE.get(text, 0.0),
                seed=seed,
                max_tokens=self.options.max_tokens,
                ignore_eos=True,
            )
            for seed in range(batch)
        ]
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
        cost = self.k * draft + 1 + (verify - 1) * min(1.0, drafts_a_step)
        return {
            "text": text,
            "method": self.method,
            "batch": batch,
            "k": self.k,
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
        verify = best_of(lambda: self.forward(batch, self.k + 1))
        step = self.finished_step(batch)
        speculator: Any = self.drafted.engine.core.model_runner.speculator
        draft = best_of(lambda: speculator.proposer.propose(step))
        return verify / one, draft / self.k / one

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
