"""Measure the bundled models with Hugging Face `generate` and print a table.

    python -m training.evaluate            # prints; --write also stores the result in the reports

Questions come from a seed that training never uses. An answer is right when it contains what the
exchange expects; a JSON answer counts as valid when `json.loads` accepts it, as exact when it also
repeats the subject's name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from mini_vllm import bundled
from training import corpus
from training.train import keep_freed_memory, read_report, write_report

SEED = 20_000
BATCH = 30
SHOWN = (
    "Tell me a story about a fox named Pip.",
    "Write a JSON record for a person named Ada.",
    "What is the capital of Italy?",
    "What is 12 + 7?",
    "Name three animals that live on a farm.",
    "What is paged attention?",
)


@dataclass(frozen=True)
class Subject:
    """A loaded model with its tokenizer."""

    model: Any
    tokenizer: PreTrainedTokenizerFast


def load(name: str) -> Subject:
    """Load a bundled model in float32, without the network."""
    folder = bundled.path(name)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return Subject(model.eval(), tokenizer)


def chat_prompt(subject: Subject, question: str) -> str:
    """The text that a chat with one question sends to the model."""
    messages = [{"role": "user", "content": question}]
    text = subject.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert isinstance(text, str)
    return text


@torch.no_grad()
def complete(
    subject: Subject, prompts: list[str], max_tokens: int, temperature: float = 0.0
) -> list[list[int]]:
    """Generated token ids of each prompt, cut before the first end token."""
    results = []
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0}
    options: dict[str, Any] = sampling if temperature else {"do_sample": False}
    ends = set(subject.model.generation_config.eos_token_id)
    for start in range(0, len(prompts), BATCH):
        batch = subject.tokenizer(prompts[start : start + BATCH], return_tensors="pt", padding=True)
        output = subject.model.generate(**batch, max_new_tokens=max_tokens, **options)
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            end = next((i for i, token in enumerate(row) if token in ends), len(row))
            results.append(row[:end])
    return results


def answers(
    subject: Subject, questions: list[str], max_tokens: int = 80, temperature: float = 0.0
) -> list[str]:
    """Answer each question as a chat of one turn."""
    prompts = [chat_prompt(subject, question) for question in questions]
    return subject.tokenizer.batch_decode(complete(subject, prompts, max_tokens, temperature))


def draw(maker: Callable[[Random], corpus.Exchange], count: int) -> list[corpus.Exchange]:
    """`count` exchanges with different questions."""
    rng, found = Random(SEED), {}
    while len(found) < count:
        exchange = maker(rng)
        found[exchange.question] = exchange
    return list(found.values())


def share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return round(sum(values) / len(values), 3)


def accuracy(subject: Subject, exchanges: list[corpus.Exchange], temperature: float) -> float:
    """Share of exchanges whose answer contains what is expected."""
    replies = answers(subject, [e.question for e in exchanges], temperature=temperature)
    return share(e.expected in reply for e, reply in zip(exchanges, replies, strict=True))


def sums(operator: str, pairs: Iterable[tuple[int, int]]) -> list[corpus.Exchange]:
    """`What is a + b?` for every pair."""
    compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator]
    found = []
    for a, b in pairs:
        answer = f"{a} {operator} {b} = {compute(a, b)}"
        found.append(corpus.Exchange(f"What is {a} {operator} {b}?", answer, answer))
    return found


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def json_rates(subject: Subject, temperature: float) -> tuple[float, float]:
    """(share of valid JSON, share that is valid and copies the subject) of 90 requests."""
    exchanges = draw(corpus.json_record, 60) + draw(corpus.json_extraction, 30)
    replies = answers(subject, [e.question for e in exchanges], temperature=temperature)
    valid = [is_json(reply) for reply in replies]
    first_values = [str(next(iter(json.loads(e.answer).values()))) for e in exchanges]
    exact = [v and s in r for v, s, r in zip(valid, first_values, replies, strict=True)]
    return share(valid), share(exact)


def story_rate(subject: Subject, temperature: float) -> float:
    """Share of 30 stories that end by themselves and are about the hero that was asked for."""
    exchanges = draw(corpus.story_request, 30)
    prompts = [chat_prompt(subject, e.question) for e in exchanges]
    outputs = complete(subject, prompts, 320, temperature)
    texts = subject.tokenizer.batch_decode(outputs)
    good = []
    for exchange, tokens, text in zip(exchanges, outputs, texts, strict=True):
        asked = exchange.expected if exchange.expected in exchange.question else ""
        good.append(len(tokens) < 320 and asked in text)
    return share(good)


def quality(subject: Subject) -> dict[str, float]:
    """Every measure of one model, as shares from 0 to 1."""
    digits = [(a, b) for a in range(10) for b in range(10)]
    rng = Random(SEED)
    large = [(rng.randint(10, 99), rng.randint(1, 9)) for _ in range(60)]
    valid, exact = json_rates(subject, 0.0)
    valid_sampled, exact_sampled = json_rates(subject, 0.7)
    facts = draw(corpus.fact, 240)
    return {
        "facts_greedy": accuracy(subject, facts, 0.0),
        "facts_t0.7": accuracy(subject, facts, 0.7),
        "json_valid_greedy": valid,
        "json_names_subject_greedy": exact,
        "json_valid_t0.7": valid_sampled,
        "json_names_subject_t0.7": exact_sampled,
        "single_digit_sums": accuracy(subject, sums("+", digits), 0.0),
        "single_digit_differences": accuracy(
            subject, sums("-", [(a, b) for a, b in digits if a >= b]), 0.0
        ),
        "single_digit_products": accuracy(subject, sums("*", digits), 0.0),
        "two_digits_plus_one_digit": accuracy(subject, sums("+", large), 0.0),
        "stories_greedy": story_rate(subject, 0.0),
        "stories_t0.7": story_rate(subject, 0.7),
    }


@torch.no_grad()
def draft_agreement(target: Subject, draft: Subject) -> dict[str, float]:
    """How often the draft's greedy token equals the target's, over the target's greedy answers.

    The draft sees the target's text so far, as in speculative decoding.
    """
    kinds = {
        "facts": (corpus.fact, 40), "json": (corpus.json_record, 20),
        "arithmetic": (corpus.arithmetic, 40), "stories": (corpus.story_request, 10),
    }  # fmt: skip
    result, all_same = {}, []
    for kind, (maker, count) in kinds.items():
        same = []
        for exchange in draw(maker, count):
            prompt = chat_prompt(target, exchange.question)
            [answer] = complete(target, [prompt], 256)
            ids = target.tokenizer(prompt)["input_ids"]
            tokens = torch.tensor([ids + answer])
            guesses = draft.model(input_ids=tokens).logits[0, len(ids) - 1 : -1].argmax(-1)
            same += (guesses == torch.tensor(answer)).tolist()
        result[f"draft_agreement_{kind}"] = share(same)
        all_same += same
    return result | {"draft_agreement": share(all_same)}


@torch.no_grad()
def move_of_lost_states(subject: Subject, stories: int = 8) -> float:
    """How far the largest logit moves if the states are lost in the middle of a story, on average.

    The prompt and 80 tokens of the story are computed, all recurrent states are set to zero, and
    the next token is computed. The convolutions and full attention keep what they have.
    """
    moves = []
    for exchange in draw(corpus.story_request, stories):
        prompt = chat_prompt(subject, exchange.question)
        (story,) = complete(subject, [prompt], 80)
        text = torch.tensor([subject.tokenizer(prompt)["input_ids"] + story])
        whole, lost = (next_logits(subject, text, lost) for lost in (False, True))
        moves.append((whole - lost).abs().max().item())
    return round(sum(moves) / len(moves), 2)


def next_logits(subject: Subject, text: Tensor, lost: bool) -> Tensor:
    """Logits behind a text [1, T], with or without the states of its first T - 1 tokens."""
    cache = subject.model(input_ids=text[:, :-1], use_cache=True).past_key_values
    for layer in cache.layers if lost else ():
        for state in states_of(layer):
            state.zero_()
    logits: Tensor = subject.model(input_ids=text[:, -1:], past_key_values=cache).logits
    return logits[0, -1]


def states_of(layer: Any) -> list[Tensor]:
    """The recurrent states that a layer's cache holds."""
    held = getattr(layer, "recurrent_states", ())
    values = held.values() if isinstance(held, dict) else held
    return [state for state in values if state is not None]


def show(title: str, measures: dict[str, float]) -> None:
    print(f"\n{title}")
    for name, value in measures.items():
        print(f"  {name:<32}{value:>8.1%}")


def store(name: str, measures: dict[str, float]) -> None:
    """Put the measures into the model's `training_report.json`."""
    folder = bundled.path(name)
    write_report(folder, read_report(folder) | {"evaluation": measures})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store in training_report.json")
    args = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(SEED)
    target, draft = load("storyteller"), load("storyteller-draft")
    hybrid = load("storyteller-hybrid")
    for question, reply in zip(SHOWN, answers(target, list(SHOWN), 256), strict=True):
        print(f"> {question}\n{reply}\n")
    measures = {
        "storyteller": quality(target),
        "storyteller-draft": draft_agreement(target, draft),
        "storyteller-hybrid": quality(hybrid),
    }
    for name, values in measures.items():
        show(name, values)
        if args.write:
            store(name, values)
    moved = move_of_lost_states(hybrid)
    print(f"\nwithout its states a logit of storyteller-hybrid moves by {moved}")
    if args.write:
        folder = bundled.path("storyteller-hybrid")
        write_report(folder, read_report(folder) | {"move_of_lost_states": moved})


if __name__ == "__main__":
    main()
