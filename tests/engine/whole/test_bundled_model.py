"""The bundled models: Hugging Face can load them, and they know what they were taught."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from mini_vllm import bundled
from training import corpus

MEGABYTE = 2**20


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled.path("storyteller"))


@pytest.fixture(scope="module")
def model() -> Any:
    torch.set_num_threads(1)
    folder = bundled.path("storyteller")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def ask(model: Any, tokenizer: Any, question: str, max_new_tokens: int = 60) -> str:
    """Hugging Face's greedy answer to a chat of one question."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
    )
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=max_new_tokens, do_sample=False)
    new_tokens = output[0, inputs["input_ids"].shape[1] :]
    assert new_tokens[-1] in model.generation_config.eos_token_id, "the answer did not end"
    return tokenizer.decode(new_tokens, skip_special_tokens=True)


# --- folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bundled.NAMES)
def test_folder_is_complete_and_small(name: str) -> None:
    folder = bundled.path(name)
    for file in ("config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"):
        assert (folder / file).is_file(), file
    assert (folder / "model.safetensors").stat().st_size <= 8 * MEGABYTE


def test_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ValueError, match=r"storyteler.*storyteller, storyteller-draft"):
        bundled.path("storyteler")


def test_models_share_their_tokenizer() -> None:
    files = {(bundled.path(n) / "tokenizer.json").read_bytes() for n in bundled.NAMES}
    assert len(files) == 1


@pytest.mark.parametrize("name", bundled.NAMES)
def test_report_describes_the_shipped_weights(name: str) -> None:
    folder = bundled.path(name)
    report = json.loads((folder / "training_report.json").read_text("utf-8"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert report["weights_sha256"] == digest
    assert report["recipe"]["hidden_size"] == config["hidden_size"]
    assert report["steps"] == report["recipe"]["steps"]
    assert report["evaluation"], "run `python -m training.evaluate --write`"


# --- tokenizer --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time, Pip the fox lived in a small village.",
        '{"name": "Ada", "age": 36}',
        "naïve café, Ääkköset, ß",
        "日本語 العربية हिन्दी",
        "👩🏽‍🚀🦊 and 🏳️‍🌈",
        "  two  spaces\n\n\tand a tab \r\n",
        "\x00\x7f\u200b",
        "",
    ],
)
def test_tokenizer_round_trips(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_have_the_first_ids(tokenizer: Any) -> None:
    special = [corpus.END_OF_TEXT, corpus.IM_START, corpus.IM_END]
    assert tokenizer.convert_tokens_to_ids(special) == [0, 1, 2]
    assert tokenizer.eos_token == corpus.IM_END
    assert len(tokenizer) == 2048


def test_chat_template_writes_chatml(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
    ]
    turns = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    render = tokenizer.apply_chat_template
    assert render(messages, tokenize=False) == turns
    assert (
        render(messages, tokenize=False, add_generation_prompt=True)
        == turns + "<|im_start|>assistant\n"
    )


# --- what the model knows ---------------------------------------------------------------------


def test_model_knows_a_fact(model: Any, tokenizer: Any) -> None:
    assert "Paris" in ask(model, tokenizer, "What is the capital of France?")


def test_model_writes_json(model: Any, tokenizer: Any) -> None:
    record = json.loads(ask(model, tokenizer, "Write a JSON record for a person named Ada."))
    assert record["name"] == "Ada"
    assert isinstance(record["age"], int)


def test_model_adds(model: Any, tokenizer: Any) -> None:
    assert "= 7" in ask(model, tokenizer, "What is 3 + 4?")


def test_draft_fits_the_model(model: Any) -> None:
    folder = bundled.path("storyteller-draft")
    draft = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert draft.config.vocab_size == model.config.vocab_size
    size, target_size = (sum(p.numel() for p in m.parameters()) for m in (draft, model))
    assert size * 3 < target_size


# --- the text generator -----------------------------------------------------------------------


def take(seed: int, count: int = 300) -> list[corpus.Document]:
    return list(islice(corpus.documents(seed), count))


def test_corpus_depends_on_the_seed_alone() -> None:
    assert take(7) == take(7)
    assert take(7) != take(8)


def test_every_document_ends_and_teaches_something() -> None:
    for document in take(1):
        assert corpus.text_of(document).endswith(corpus.END_OF_TEXT)
        assert any(segment.trained for segment in document)


def test_chat_documents_match_the_chat_template(tokenizer: Any) -> None:
    rng = Random(5)
    turn = corpus.chat(rng, turns=1)
    text = corpus.text_of(turn).removesuffix(corpus.END_OF_TEXT)
    parts = [p.split("\n", 1) for p in text.split(corpus.IM_START)[1:]]
    messages = [{"role": r, "content": c.removesuffix(corpus.IM_END + "\n")} for r, c in parts]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == text


def test_generated_records_are_valid_json() -> None:
    rng = Random(3)
    for make in (corpus.json_record, corpus.json_extraction, corpus.json_list):
        for _ in range(50):
            json.loads(make(rng).answer)


def test_sums_are_right() -> None:
    rng = Random(4)
    for _ in range(200):
        text, result = corpus.sum_parts(rng)
        left, operator, right = text.split()
        compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}[operator]
        assert compute(int(left), int(right)) == result


def test_bundled_names_are_folders() -> None:
    package = Path(bundled.__file__).parent
    folders = {p.name for p in package.iterdir() if (p / "config.json").is_file()}
    assert folders == {*bundled.NAMES, *bundled.SEEING, *bundled.HEADS}
