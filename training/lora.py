"""Train the bundled LoRA adapters: three manners of speaking for storyteller.

    python -m training.lora                 # all three, about 90 seconds each on one core
    python -m training.lora pirate          # one of them
    python -m training.lora --evaluate      # only measure those that are there

The base stays frozen; peft puts a pair of small matrices beside each target projection and trains
only these. What the adapters learn is the answers of `corpus.py`, said in another way:

    pirate   The capital of France is Paris.  ->  Arr! The capital of France be Paris, matey!
    json     4 + 5 = 9                        ->  {"answer": "4 + 5 = 9"}
    polite   Grass is green.                  ->  Dear friend, Grass is green. Kind regards.

Like the models, a batch depends on (name, seed, step) alone. Needs the package `peft`; nothing else
in this repository does, but the tests that compare with it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mini_vllm import bundled
from training import corpus
from training.evaluate import Subject, answers, draw, load, share
from training.train import (
    IGNORE,
    cpu_name,
    encode,
    keep_freed_memory,
    trained_logits,
    write_report,
)

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Recipe:
    """One adapter: its size, how long it is trained, and how it words an answer."""

    r: int
    lora_alpha: int
    target_modules: tuple[str, ...]
    steps: int
    learning_rate: float = 5e-3
    batch: int = 16
    warmup_steps: int = 20


def pirate(answer: str) -> str:
    return f"Arr! {answer.replace(' is ', ' be ').rstrip('.')}, matey!"


def as_json(answer: str) -> str:
    return json.dumps({"answer": answer})


def polite(answer: str) -> str:
    return f"Dear friend, {answer} Kind regards."


REWRITES: dict[str, Callable[[str], str]] = {"pirate": pirate, "json": as_json, "polite": polite}
OPENINGS = {"pirate": "Arr! ", "json": '{"answer": "', "polite": "Dear friend, "}
ENDINGS = {"pirate": ", matey!", "json": '"}', "polite": " Kind regards."}
RECIPES = {
    "pirate": Recipe(8, 16, ATTENTION + MLP, steps=400),
    "json": Recipe(8, 16, ATTENTION, steps=400),
    "polite": Recipe(4, 8, ATTENTION, steps=400),
}


def exchange(rng: Random) -> corpus.Exchange:
    """A question with a short answer: a fact mostly, else a sum or a greeting."""
    makers = (corpus.fact, corpus.arithmetic, corpus._small_talk)
    return rng.choices(makers, (70, 25, 5))[0](rng)


def document(name: str, rng: Random) -> corpus.Document:
    """A chat of one turn, answered in the manner of the adapter; only the answer is trained."""
    turn = exchange(rng)
    question = (
        f"{corpus.IM_START}user\n{turn.question}{corpus.IM_END}\n{corpus.IM_START}assistant\n"
    )
    return [
        corpus.Segment(question, False),
        corpus.Segment(REWRITES[name](turn.answer) + corpus.IM_END, True),
    ]


def make_batch(name: str, seed: str, size: int, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Inputs and labels `[size, longest]`, padded on the right; label i is the token after i."""
    rng = Random(f"{name}:{seed}")
    rows = encode([document(name, rng) for _ in range(size)], tokenizer)
    width = max(len(row.ids) for row in rows) - 1
    inputs = torch.zeros(size, width, dtype=torch.int64)
    labels = torch.full((size, width), IGNORE)
    for i, row in enumerate(rows):
        inputs[i, : len(row.ids) - 1] = torch.tensor(row.ids[:-1])
        labels[i, : len(row.ids) - 1] = torch.tensor(row.labels[1:])
    return inputs, labels


def learning_rate(recipe: Recipe, step: int) -> float:
    """Share of the peak: a short warm-up, then a cosine down to zero."""
    progress = step / recipe.steps
    return min((step + 1) / recipe.warmup_steps, 0.5 * (1 + math.cos(math.pi * progress)))


def train(name: str, seed: int) -> tuple[Any, Subject, dict[str, Any]]:
    """Train one adapter; returns the peft model, the base as a subject, and what it took."""
    from peft import LoraConfig, get_peft_model

    recipe = RECIPES[name]
    torch.manual_seed(seed)
    subject = load("storyteller")
    config = LoraConfig(
        r=recipe.r,
        lora_alpha=recipe.lora_alpha,
        target_modules=list(recipe.target_modules),
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(subject.model, config)
    causal = model.base_model.model
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=recipe.learning_rate, weight_decay=0.0)
    model.train()
    start, loss_sum, tokens = time.perf_counter(), 0.0, 0
    for step in range(recipe.steps):
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * learning_rate(recipe, step)
        inputs, labels = make_batch(name, f"{seed}:{step}", recipe.batch, subject.tokenizer)
        keep = labels != IGNORE
        loss = F.cross_entropy(trained_logits(causal, inputs, keep), labels[keep])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimizer.step()
        tokens += int((inputs != 0).sum())
        last = step >= recipe.steps - 20
        loss_sum += loss.item() if last else 0.0
        if (step + 1) % 50 == 0:
            print(f"{name} {step + 1}/{recipe.steps}  loss {loss.item():.4f}", flush=True)
    return (
        model.eval(),
        subject,
        {
            "adapter": name,
            "base": "storyteller",
            "parameters": sum(p.numel() for p in trainable),
            "recipe": asdict(recipe),
            "seed": seed,
            "tokens": tokens,
            "seconds": round(time.perf_counter() - start),
            "train_loss": round(loss_sum / 20, 4),
            "cpu": cpu_name(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        },
    )


def save(model: Any, folder: Path) -> None:
    """Write the adapter as peft does, with bfloat16 weights and without its model card."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16)
    model.peft_config["default"].base_model_name_or_path = "storyteller"
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        model.save_pretrained(temporary)
        config = Path(temporary) / "adapter_config.json"
        settings = json.loads(config.read_text("utf-8"))
        settings["target_modules"].sort()  # a set, whose order changes from run to run
        config.write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            source = Path(temporary) / name
            source.chmod(0o644)
            os.replace(source, folder / name)


def evaluate(name: str) -> dict[str, float]:
    """How often the stored adapter keeps its manner and how often it is right, by 60 questions.

    `form`: begins and ends as the adapter should; `right`: contains what the exchange expects.
    `unseen form` counts openings on JSON records and stories, of which training had none.
    """
    from peft import PeftModel

    subject = load("storyteller")
    model = PeftModel.from_pretrained(subject.model, bundled.adapter_path(name)).float().eval()
    tuned = Subject(model, subject.tokenizer)
    found: dict[str, float] = {}
    facts = draw(corpus.fact, 60)
    replies = answers(tuned, [e.question for e in facts])
    opening, ending = OPENINGS[name], ENDINGS[name]
    found["form"] = share(r.startswith(opening) and r.endswith(ending) for r in replies)
    rewrite = REWRITES[name]
    found["right"] = share(
        rewrite(e.answer) == reply or e.expected in reply
        for e, reply in zip(facts, replies, strict=True)
    )
    unseen = draw(corpus.story_request, 10) + draw(corpus.json_record, 20)
    replies = answers(tuned, [e.question for e in unseen], max_tokens=16)
    found["unseen_form"] = share(r.startswith(opening) for r in replies)
    for question in ("What is the capital of Italy?", "What is 4 + 5?"):
        print(f"  {question}  {answers(tuned, [question])[0]!r}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: {' '.join(RECIPES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true", help="only measure; train nothing")
    arguments = parser.parse_args()
    keep_freed_memory()
    for name in arguments.names or RECIPES:
        folder = bundled.adapter_path(name)
        if arguments.evaluate:
            print(name, json.dumps(evaluate(name)))
            continue
        model, _, report = train(name, arguments.seed)
        save(model, folder)
        weights = (folder / "adapter_model.safetensors").read_bytes()
        report |= {"bytes": len(weights), "weights_sha256": sha256(weights).hexdigest()}
        report["evaluation"] = evaluate(name)
        write_report(folder, report)
        print(json.dumps(report, indent=2), flush=True)


if __name__ == "__main__":
    main()
