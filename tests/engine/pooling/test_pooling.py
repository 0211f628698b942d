"""Embeddings, classes and scores are what transformers and plain arithmetic say, however a prompt
is computed: alone, batched, in chunks, after a preemption, with a prefix from the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, PoolingParams, SamplingParams
from mini_vllm.config import PoolerConfig
from mini_vllm.engine.checked_config import make_engine_config
from mini_vllm.engine.exceptions import EngineGenerateError
from mini_vllm.errors import VLLMValidationError
from tests.engine.pooling.tiny import HIDDEN, PROMPTS, VOCAB, add_steps, make, oracle

Vector = NDArray[np.float32]
WAYS: dict[str, dict[str, Any]] = {
    "at once": {},
    "in chunks": {"max_num_batched_tokens": 4, "max_num_seqs": 2},
    "preempted": {
        "num_gpu_blocks": 8, "max_num_batched_tokens": 8, "long_prefill_token_threshold": 4,
        "scheduler_reserve_full_isl": False,
    },
    "without a cache": {"enable_prefix_caching": False},
}  # fmt: skip


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("embedder"), "embedder")


def start(folder: Path, **more: Any) -> LLM:
    options = {"block_size": 4, "num_gpu_blocks": 32, "max_model_len": 64} | more
    return LLM(folder, skip_tokenizer_init=True, runner="pooling", **options)


def unit(values: Vector) -> Vector:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


def embeddings(llm: LLM, prompts: Any = PROMPTS, **more: Any) -> list[Vector]:
    outputs = llm.embed(prompts, use_tqdm=False, **more)
    return [np.array(output.outputs.embedding, np.float32) for output in outputs]


def assert_equal(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


POOLED = {
    "LAST": lambda hidden: unit(hidden[-1]),
    "CLS": lambda hidden: unit(hidden[0]),
    "MEAN": lambda hidden: unit(hidden.mean(0)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", POOLED)
def test_embeddings_equal_those_of_transformers(embedder: Path, kind: str, way: str) -> None:
    llm = start(embedder, pooler_config={"pooling_type": kind}, **WAYS[way])
    preempted: list[str] = []
    observers = llm.engine.core.observers
    observers.append(lambda plan, *_: preempted.extend(plan.preempted_req_ids))
    prompts = PROMPTS * 2  # and the second time from the cache, where that may be
    wanted = [POOLED[kind](hidden) for hidden in oracle("embedder")] * 2
    assert_equal(embeddings(llm, prompts), wanted)
    assert_equal(embeddings(llm, prompts), wanted)
    llm.engine.core.scheduler.check_integrity()
    assert bool(preempted) == (way == "preempted")


def test_only_last_token_pooling_reads_the_prefix_cache(embedder: Path) -> None:
    """The cache keeps keys and values; the hidden states of what it supplies are not computed."""
    for kind, reads in {"LAST": True, "MEAN": False, "CLS": False}.items():
        llm = start(embedder, pooler_config=PoolerConfig(pooling_type=kind))
        cached = [llm.embed([PROMPTS[2]], use_tqdm=False)[0].num_cached_tokens for _ in range(2)]
        assert cached == [0, 20 if reads else 0]
    (tokens,) = llm.encode([PROMPTS[2]], pooling_task="token_embed", use_tqdm=False)
    assert tokens.num_cached_tokens == 0
    assert_equal([tokens.outputs.data], [unit(oracle("embedder")[2])])


@pytest.mark.parametrize("way", ["at once", "in chunks"])
def test_each_token_can_have_its_own(embedder: Path, way: str) -> None:
    llm = start(embedder, **WAYS[way])
    outputs = llm.encode(PROMPTS, pooling_task="token_embed", use_tqdm=False)
    assert [type(output.outputs.data) for output in outputs] == [torch.Tensor] * 3
    assert_equal([o.outputs.data for o in outputs], [unit(h) for h in oracle("embedder")])
    raw = PoolingParams(use_activation=False)
    outputs = llm.encode(PROMPTS, raw, pooling_task="token_embed", use_tqdm=False)
    assert_equal([o.outputs.data for o in outputs], oracle("embedder"))


def test_steps_of_a_prompt(embedder: Path) -> None:
    steps = {"pooling_type": "STEP", "step_tag_id": 1, "returned_token_ids": [3, 0]}
    llm = start(embedder, pooler_config=steps)
    raw = PoolingParams(use_activation=False)
    (output,) = llm.encode([PROMPTS[1]], raw, pooling_task="token_embed", use_tqdm=False)
    hidden = oracle("embedder")[1]
    assert_equal([output.outputs.data], [hidden[[1, 3]][:, [3, 0]]])
    with pytest.raises(ValueError, match="only pooling_type 'STEP' reads it"):
        start(embedder).embed(PROMPTS, pooling_params=PoolingParams(step_tag_id=1), use_tqdm=False)


def test_one_batch_may_ask_for_different_things(embedder: Path) -> None:
    """The first numbers of a matryoshka embedding are normalised by themselves."""
    llm = start(embedder, hf_overrides={"matryoshka_dimensions": [8, 16]})
    params = [
        PoolingParams(dimensions=8),
        PoolingParams(dimensions=16, use_activation=False),
        PoolingParams(normalize=True),
    ]
    h = [hidden[-1] for hidden in oracle("embedder")]
    assert_equal(embeddings(llm, pooling_params=params), [unit(h[0][:8]), h[1][:16], unit(h[2])])


def test_files_of_sentence_transformers_say_how(tmp_path: Path) -> None:
    """The architecture is one that writes; what lies beside it says that it embeds."""
    folder = add_steps(make(tmp_path, "embedder"), "pooling_mode_mean_tokens", "Normalize")
    llm = LLM(folder, skip_tokenizer_init=True, num_gpu_blocks=32, max_model_len=64)
    assert (llm.config.model.runner, llm.config.model.convert) == ("pooling", "embed")
    assert_equal(embeddings(llm), [unit(h.mean(0)) for h in oracle("embedder")])
    add_steps(folder)  # without normalisation
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 48}')
    llm = LLM(folder, skip_tokenizer_init=True, num_gpu_blocks=32)
    assert llm.config.scheduler.max_model_len == 48
    assert_equal(embeddings(llm), [h[-1] for h in oracle("embedder")])
    assert make_engine_config(folder, runner="generate").model.convert == "none"


def test_steps_that_are_not_known_are_refused(tmp_path: Path) -> None:
    folder = add_steps(make(tmp_path, "embedder"), "pooling_mode_max_tokens")
    with pytest.raises(ValueError, match=r"pooling is \['max'\]; it must be one of cls, mean"):
        make_engine_config(folder)
    assert make_engine_config(folder, pooler_config={"pooling_type": "MEAN"}).model.pools
    add_steps(folder, "pooling_mode_lasttoken", "LSTM")
    with pytest.raises(ValueError, match="has a step 'LSTM'; known are Transformer"):
        make_engine_config(folder)
    add_steps(folder, "pooling_mode_lasttoken", "Normalize", "Dense")
    with pytest.raises(ValueError, match=r"steps .*Pooling, Normalize, Dense; another order than"):
        make_engine_config(folder)
    add_steps(folder, "pooling_mode_lasttoken", "Dropout", "Normalize")
    assert make_engine_config(folder).pooler.use_activation
    (folder / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    with pytest.raises(ValueError, match="do_lower_case is true"):
        make_engine_config(folder, max_model_len=32)
    (folder / "1_Pooling/config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"a step 'Pooling', whose file .* is not there"):
        make_engine_config(folder)


def test_a_dense_step_is_a_product(tmp_path: Path) -> None:
    folder = add_steps(make(tmp_path, "embedder"), "pooling_mode_lasttoken", "Dense", "Normalize")
    matrix, bias = torch.randn(6, HIDDEN), torch.randn(6)
    (folder / "2_Dense").mkdir()
    save_file({"linear.weight": matrix, "linear.bias": bias}, folder / "2_Dense/model.safetensors")
    entries = {"in_features": HIDDEN, "out_features": 6, "bias": True}
    entries |= {"activation_function": "torch.nn.modules.activation.Tanh"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(entries))
    wanted = [np.tanh(matrix.numpy() @ h[-1] + bias.numpy()) for h in oracle("embedder")]
    assert_equal(embeddings(start(folder)), [unit(one) for one in wanted])


@pytest.mark.parametrize("way", ["at once", "in chunks"])
def test_classes_equal_those_of_transformers(tmp_path: Path, way: str) -> None:
    """The architecture says that it classifies; nothing else is said."""
    folder = make(tmp_path, "classifier")
    llm = LLM(folder, skip_tokenizer_init=True, max_model_len=64, num_gpu_blocks=32, **WAYS[way])
    probs = [output.outputs.probs for output in llm.classify(PROMPTS, use_tqdm=False)]
    logits = oracle("classifier")
    assert_equal(probs, [np.exp(x) / np.exp(x).sum() for x in logits])
    raw = llm.classify(PROMPTS, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
    assert_equal([output.outputs.probs for output in raw], logits)
    (tokens,) = llm.encode([PROMPTS[1]], pooling_task="token_classify", use_tqdm=False)
    assert_equal([tokens.outputs.data[-1]], probs[1:2])
    assert llm.reward(PROMPTS[1:2], use_tqdm=False)[0].outputs == tokens.outputs
    with pytest.raises(ValueError, match="Embedding API is not supported by this model"):
        llm.embed(PROMPTS, use_tqdm=False)
    with pytest.raises(ValueError, match="num_labels == 1"):
        llm.score("a", "b", use_tqdm=False)


def test_one_class_is_a_sigmoid_and_can_be_calibrated(tmp_path: Path) -> None:
    folder = make(tmp_path, "judge")
    logits = oracle("judge")
    assert_equal(
        [o.outputs.probs for o in start(folder).classify(PROMPTS, use_tqdm=False)],
        [1 / (1 + np.exp(-x)) for x in logits],
    )
    calibrated = start(folder, pooler_config={"logit_mean": 0.5, "logit_sigma": 2.0})
    assert_equal(
        [o.outputs.probs for o in calibrated.classify(PROMPTS, use_tqdm=False)],
        [1 / (1 + np.exp(-(x - 0.5) / 2)) for x in logits],
    )


def test_a_prompt_may_fill_the_whole_length(embedder: Path) -> None:
    """Nothing follows it, so the last position is computed, in chunks, too."""
    prompt = [token % VOCAB for token in range(64)]
    whole = embeddings(start(embedder), [prompt])
    chunks = embeddings(start(embedder, max_num_batched_tokens=7, max_num_seqs=1), [prompt])
    assert_equal(chunks, whole)
    with pytest.raises(VLLMValidationError, match="maximum context length is 64 tokens") as error:
        embeddings(start(embedder), [[*prompt, 1]])
    assert error.value.parameter == "input_tokens"


def test_nan_ends_its_own_request_with_a_sentence(tmp_path: Path) -> None:
    folder = make(tmp_path, "embedder")
    weights = load_file(folder / "model.safetensors")
    weights["embed_tokens.weight"][7] = float("nan")
    save_file(weights, folder / "model.safetensors")
    llm = start(folder)
    with pytest.raises(EngineGenerateError, match=r"prompts\[1\]: the model's output holds NaN"):
        llm.embed([PROMPTS[1], [7, 5], PROMPTS[2]], use_tqdm=False)
    wanted = [unit(oracle("embedder")[1][-1])]
    assert_equal(embeddings(llm, [PROMPTS[1]]), wanted)  # in a cache that is clean again


def test_an_interrupted_step_is_undone(embedder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a sum is forgotten with the step, and begun anew."""
    llm = start(embedder, pooler_config={"pooling_type": "MEAN"}, max_num_batched_tokens=8,
                max_num_seqs=2)  # fmt: skip
    llm.engine.add_request("r", PROMPTS[2], PoolingParams())
    assert llm.engine.step() == []
    frame = llm.engine.core.model_runner
    pool = frame.pooler.pool  # type: ignore[union-attr]

    def interrupted(*args: Any) -> None:
        pool(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(frame.pooler, "pool", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.engine.step()
    monkeypatch.undo()
    while not (outputs := llm.engine.step()):
        pass
    assert_equal([outputs[0].outputs.data], [unit(oracle("embedder")[2].mean(0))])
    assert not llm.engine.has_unfinished_requests() and not frame.pooler._kept


BAD = {
    "the prompt is empty": dict(prompts=[[]]),
    "does not support matryoshka": dict(pooling_params=PoolingParams(dimensions=8)),
    "vocabulary ends at": dict(prompts=[[VOCAB]]),
    "no tokenizer is loaded": dict(prompts="text"),
    "lengths of prompts": dict(pooling_params=[PoolingParams()]),
    "cannot overwrite": dict(pooling_params=PoolingParams(task="token_embed")),
    "pass a PoolingParams": dict(pooling_params=SamplingParams()),
    "known are truncate": dict(tokenization_kwargs={"padding": True}),
    "Please request a smaller truncation": dict(tokenization_kwargs={"truncate_prompt_tokens": 65}),
}


def test_bad_input_is_refused_and_leaves_nothing(embedder: Path) -> None:
    llm = start(embedder)
    for message, given in BAD.items():
        arguments = {"prompts": PROMPTS} | given
        with pytest.raises(ValueError, match=message):
            llm.embed(arguments.pop("prompts"), use_tqdm=False, **arguments)
        assert not llm.engine.has_unfinished_requests()
    with pytest.raises(ValueError, match="only supported for generative models"):
        llm.generate(PROMPTS)
    with pytest.raises(ValueError, match="pooling_task required"):
        llm.encode(PROMPTS)
    with pytest.raises(ValueError, match="--convert classify"):
        llm.classify(PROMPTS)
    with pytest.raises(ValueError, match="does not support generation"):
        llm.engine.add_request("r", PROMPTS[0], SamplingParams())
    cut = llm.embed([PROMPTS[2]], tokenization_kwargs={"truncate_prompt_tokens": 5})
    assert cut[0].prompt_token_ids == PROMPTS[2][:5]


def test_a_model_that_writes_says_so() -> None:
    llm = LLM("storyteller", skip_tokenizer_init=True, num_gpu_blocks=32, max_model_len=64)
    with pytest.raises(ValueError, match="--runner pooling"):
        llm.embed(PROMPTS)
    with pytest.raises(ValueError, match="does not support pooling"):
        llm.engine.add_request("r", PROMPTS[0], PoolingParams())


REFUSED = {
    "--convert <embed.classify>": dict(convert="none"),
    "has no 'score.weight'": dict(convert="classify"),
    "is_causal is false": dict(hf_overrides={"is_causal": False}),
    "Unsupported task: 'classify'": dict(pooler_config={"task": "classify"}),
    "pooling_type is 'MAX'": dict(pooler_config={"pooling_type": "MAX"}),
    "pooler_config has no key 'kind'": dict(pooler_config={"kind": "LAST"}),
    "runner='pooling' does not go with speculative_config": dict(
        speculative_config={"method": "ngram", "num_speculative_tokens": 2}
    ),
    "async_scheduling does not go with runner='pooling'": dict(async_scheduling=True),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_is_refused_at_the_start(embedder: Path, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        start(embedder, **REFUSED[message])


def test_other_architectures(tmp_path: Path) -> None:
    folder = make(tmp_path, "classifier")
    with pytest.raises(ValueError, match="does not support `--runner generate`"):
        make_engine_config(folder, runner="generate")
    make(tmp_path, "embedder", architectures=["Qwen3Model"])
    assert make_engine_config(folder).model.convert == "embed"
    make(tmp_path, "embedder", architectures=["BertModel"])
    with pytest.raises(ValueError, match="BertModel is an encoder"):
        make_engine_config(folder)
    make(tmp_path, "embedder", architectures=5)
    with pytest.raises(ValueError, match="architectures is 5; it must be a list of class names"):
        make_engine_config(folder)
    make(tmp_path, "embedder", architectures=["OPTForSequenceClassification"])
    with pytest.raises(ValueError, match=r"OPTForSequenceClassification.*is not supported"):
        make_engine_config(folder)
