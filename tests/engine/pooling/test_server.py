"""Embeddings, classes and scores over HTTP, and by AsyncLLM: each equal to what LLM says."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from starlette.testclient import TestClient

from mini_vllm import LLM, PoolingParams, bundled
from mini_vllm.engine.exceptions import EngineGenerateError
from tests.engine.pooling.here import make_engine, serve
from tests.engine.pooling.test_pooling import assert_equal, unit
from tests.engine.pooling.tiny import LABELS, PROMPTS, make, oracle

TEXTS = ["Once upon a time", "the fox ran into the forest", "rain"]
LIMITS: dict[str, Any] = {"num_gpu_blocks": 64, "max_model_len": 64, "block_size": 4}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("storyteller", runner="pooling", dtype="float32", **LIMITS)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    overrides = {"matryoshka_dimensions": [16, 32]}
    engine = make_engine(
        "storyteller", runner="pooling", dtype="float32", hf_overrides=overrides, **LIMITS
    )
    with serve(engine, ["mine", "also"], enable_prompt_tokens_details=True) as made:
        yield made


def embed(llm: LLM, prompts: Any, **more: Any) -> list[list[float]]:
    return [o.outputs.embedding for o in llm.embed(prompts, use_tqdm=False, **more)]


def ask(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_kind_of_input(client: TestClient, llm: LLM) -> None:
    ids = [llm.get_tokenizer().encode(text) for text in TEXTS]
    wanted = embed(llm, TEXTS)
    for given, number in ((TEXTS, 3), (ids, 3), (TEXTS[0], 1), (ids[0], 1)):
        body = ask(client, "/v1/embeddings", input=given, model="also")
        assert (body["object"], body["model"]) == ("list", "mine") and body["id"][:5] == "embd-"
        assert [item["index"] for item in body["data"]] == list(range(number))
        assert_equal([item["embedding"] for item in body["data"]], wanted[:number])
        num_tokens = sum(map(len, ids[:number]))
        usage = body["usage"]
        assert usage["prompt_tokens"] == usage["total_tokens"] == num_tokens
    messages = [{"role": "user", "content": "Hi"}]
    chat = ask(client, "/v1/embeddings", messages=messages)
    prompt = llm.apply_chat_template(messages, add_generation_prompt=False)
    assert_equal([chat["data"][0]["embedding"]], embed(llm, [prompt]))


def test_the_client_of_openai(client: TestClient, llm: LLM) -> None:
    """It asks for base64 by itself."""
    asks = openai.OpenAI(base_url="http://testserver/v1", api_key="any", http_client=client)
    answer = asks.embeddings.create(model="mine", input=TEXTS, dimensions=32)
    full = embed(llm, TEXTS, pooling_params=PoolingParams(use_activation=False))
    assert_equal([item.embedding for item in answer.data], unit(np.array(full)[:, :32]))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens
    with pytest.raises(openai.BadRequestError, match="does not support Chat Completions API"):
        asks.chat.completions.create(model="mine", messages=[{"role": "user", "content": "Hi"}])


def test_every_way_to_write_numbers(client: TestClient, llm: LLM) -> None:
    wanted = np.array(embed(llm, TEXTS), np.float32)
    body = ask(client, "/v1/embeddings", input=TEXTS, encoding_format="base64")
    found = [base64.b64decode(item["embedding"]) for item in body["data"]]
    assert_equal([np.frombuffer(one, np.float32) for one in found], wanted)
    order = {"encoding_format": "base64", "embed_dtype": "float16", "endianness": "big"}
    (item,) = ask(client, "/v1/embeddings", input=TEXTS[0], **order)["data"]
    big = np.frombuffer(base64.b64decode(item["embedding"]), ">f2")
    np.testing.assert_allclose(big.astype(np.float32), wanted[0], atol=1e-3)
    answer = client.post("/v1/embeddings", json={"input": TEXTS, "encoding_format": "bytes"})
    for place in json.loads(answer.headers["metadata"])["data"]:
        row = np.frombuffer(answer.content[place["start"] : place["end"]], np.float32)
        assert_equal([row], [wanted[place["index"]]])
        assert place["shape"] == [192]


def test_cutting_and_dimensions(client: TestClient, llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(TEXTS[1])
    for side, kept in {"left": ids[-3:], "right": ids[:3], None: ids[:3]}.items():
        body = ask(
            client, "/v1/embeddings", input=TEXTS[1], truncate_prompt_tokens=3, truncation_side=side
        )
        assert_equal([body["data"][0]["embedding"]], embed(llm, [kept]))
    long = ask(client, "/v1/embeddings", input="fox " * 200, truncate_prompt_tokens=-1)
    assert long["usage"]["prompt_tokens"] == 64
    short = ask(client, "/v1/embeddings", input=TEXTS, dimensions=16)["data"]
    full = embed(llm, TEXTS, pooling_params=PoolingParams(use_activation=False))
    assert_equal([item["embedding"] for item in short], unit(np.array(full)[:, :16]))


def test_embeddings_for_clients_of_cohere(client: TestClient, llm: LLM) -> None:
    forms = ["float", "binary", "ubinary", "base64"]
    body = ask(client, "/v2/embed", model="mine", texts=TEXTS, embedding_types=forms)
    wanted, found = np.array(embed(llm, TEXTS), np.float32), body["embeddings"]
    assert_equal(found["float"], wanted)
    exact = np.array(found["float"], np.float32)
    decoded = [np.frombuffer(base64.b64decode(text), "<f4") for text in found["base64"]]
    assert np.array_equal(decoded, exact)
    bits = np.array(found["ubinary"], np.uint8)
    assert np.array_equal(np.unpackbits(bits, axis=1), exact >= 0)
    assert np.array_equal(np.array(found["binary"]), bits.astype(int) - 128)
    num_tokens = ask(client, "/v1/embeddings", input=TEXTS)["usage"]["prompt_tokens"]
    assert body["texts"] == TEXTS and body["meta"]["billed_units"]["input_tokens"] == num_tokens
    long = " ".join(["time"] * 200)
    for truncate, cut in {"END": {}, "START": {"truncation_side": "left"}}.items():
        whole = ask(client, "/v2/embed", texts=[long], truncate=truncate, max_tokens=9)
        same = ask(client, "/v1/embeddings", input=long, truncate_prompt_tokens=9, **cut)
        assert_equal(whole["embeddings"]["float"], [same["data"][0]["embedding"]])
    chat = [{"role": "user", "content": TEXTS[0]}]
    parts = [{"content": [{"type": "text", "text": TEXTS[0]}]}]
    body = ask(client, "/v2/embed", inputs=parts, output_dimension=16)
    same = ask(client, "/v1/embeddings", messages=chat, dimensions=16)
    assert_equal(body["embeddings"]["float"], [same["data"][0]["embedding"]])


def test_what_a_text_is_for_chooses_its_instruction(tmp_path: Path, llm: LLM) -> None:
    folder = Path(shutil.copytree(bundled.path("storyteller"), tmp_path / "m"))
    prompts = {"prompts": {"query": "Find: ", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    options = {"runner": "pooling", "dtype": "float32", **LIMITS}
    with serve(make_engine(folder, **options)) as client:
        chat = [{"role": "system", "content": "Find: "}, {"role": "user", "content": TEXTS[0]}]
        same = ask(client, "/v1/embeddings", messages=chat)
        body = ask(client, "/v2/embed", texts=TEXTS[:1], input_type="query")
        assert_equal(body["embeddings"]["float"], [same["data"][0]["embedding"]])
        body = ask(client, "/v2/embed", texts=TEXTS, input_type="document")
        assert_equal(body["embeddings"]["float"], embed(llm, TEXTS))
        answer = client.post("/v2/embed", json={"texts": TEXTS, "input_type": "clustering"})
        assert answer.status_code == 400 and "document, query" in answer.text
    (folder / "chat_template.jinja").unlink()
    with serve(make_engine(folder, **options)) as client:
        body = ask(client, "/v2/embed", texts=TEXTS, input_type="query")
        wanted = embed(llm, ["Find: " + text for text in TEXTS])
        assert_equal(body["embeddings"]["float"], wanted)


def test_scores_are_cosines(client: TestClient, llm: LLM) -> None:
    a, *others = np.array(embed(llm, TEXTS))
    wanted = [float(a @ other) for other in others]
    for names in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items")):
        body = ask(client, "/v1/score", **dict(zip(names, (TEXTS[0], TEXTS[1:]), strict=True)))
        assert_equal([[item["score"] for item in body["data"]]], [wanted])
    scores = llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)
    assert_equal([[one.outputs.score for one in scores]], [wanted])
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        body = ask(client, path, query=TEXTS[0], documents=TEXTS[1:], top_n=1)
        best = int(np.argmax(wanted))
        (result,) = body["results"]
        assert result["index"] == best and result["document"]["text"] == TEXTS[1 + best]
        assert result["relevance_score"] == pytest.approx(max(wanted), abs=1e-5)
    most = {"max_tokens_per_query": 2, "max_tokens_per_doc": 2}
    shorter = ask(client, "/score", text_1=TEXTS[1], text_2=TEXTS[1] + " and hid", **most)
    assert shorter["data"][0]["score"] == pytest.approx(1.0, abs=1e-5)


def test_late_interaction(llm: LLM) -> None:
    """Each token of the query has its best match, and these are summed."""
    many = LLM("storyteller", runner="pooling", pooler_config={"task": "token_embed"},
               dtype="float32", **LIMITS)  # fmt: skip
    q, d = (
        o.outputs.data.numpy()
        for o in llm.encode(TEXTS[:2], pooling_task="token_embed", use_tqdm=False)
    )
    (score,) = many.score(TEXTS[0], TEXTS[1], use_tqdm=False)
    assert score.outputs.score == pytest.approx((q @ d.T).max(1).sum(), abs=1e-4)


def test_a_reranker_answers_yes_or_no(llm: LLM) -> None:
    """As the original Qwen3-Reranker: the probability of the second word against the first."""
    words = ["Ġbad", "Ġgood"]
    overrides = {"architectures": ["Qwen3ForSequenceClassification"],
                 "classifier_from_token": words, "is_original_qwen3_reranker": True}  # fmt: skip
    engine = make_engine("storyteller", hf_overrides=overrides, dtype="float32", **LIMITS)
    tokenizer = llm.get_tokenizer()
    model = LLM("storyteller", dtype="float32", **LIMITS).engine.core.model
    no, yes = (
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids(word)].numpy()
        for word in words
    )
    raw = PoolingParams(use_activation=False)
    hidden = np.array(embed(llm, [TEXTS[0] + text for text in TEXTS[1:]], pooling_params=raw))
    wanted = 1 / (1 + np.exp(-(hidden @ (yes - no))))
    with serve(engine) as client:
        body = ask(client, "/score", text_1=TEXTS[0], text_2=TEXTS[1:])
        assert_equal([[item["score"] for item in body["data"]]], [wanted])
        template = {"chat_template": "{{ messages[0].content }}{{ messages[1].content }}"}
        client.app.state.server.chat_template = template["chat_template"]  # type: ignore[attr-defined]
        body = ask(client, "/score", text_1=TEXTS[0], text_2=TEXTS[1:])
        assert_equal([[item["score"] for item in body["data"]]], [wanted])


def test_classes_have_names(tmp_path: Path) -> None:
    engine = make_engine(make(tmp_path, "classifier"), with_tokenizer=False)
    with serve(engine) as client:
        body = ask(client, "/classify", input=PROMPTS)
        logits = np.array(oracle("classifier"))
        assert_equal(
            [item["probs"] for item in body["data"]],
            np.exp(logits) / np.exp(logits).sum(1, keepdims=True),
        )
        names = [LABELS[str(index)] for index in logits.argmax(1)]
        assert [(item["label"], item["num_classes"]) for item in body["data"]] == [
            (name, 3) for name in names
        ]
        raw = ask(client, "/pooling", input=PROMPTS, use_activation=False)
        assert_equal([item["data"] for item in raw["data"]], logits)
        tokens = ask(client, "/pooling", input=PROMPTS[1], task="token_classify")
        assert np.array(tokens["data"][0]["data"]).shape == (5, 3)
        assert "num_labels == 1" in client.post("/score", json={"text_1": "a", "text_2": "b"}).text
        assert "Embeddings API" in client.post("/v1/embeddings", json={"input": "a"}).text


BAD: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "input is empty": ("/v1/embeddings", {"input": []}, "input"),
    "the prompt is empty": ("/v1/embeddings", {"input": ["a", ""]}, "input"),
    "should be a valid": ("/v1/embeddings", {"input": ["a", 3]}, "input"),
    "send either input or messages": ("/v1/embeddings", {}, "input"),
    "vocabulary ends at": ("/v1/embeddings", {"input": [99999]}, "input"),
    "your prompt contains 65 input tokens": ("/v1/embeddings", {"input": [1] * 65}, "input_tokens"),
    "which is the upper bound": ("/v1/embeddings", {"input": "x " * 5000}, "input_text"),
    "only supports [16, 32] matryoshka": (
        "/v1/embeddings", {"input": "a", "dimensions": 8}, "dimensions"
    ),
    "smaller truncation size": (
        "/v1/embeddings", {"input": "a", "truncate_prompt_tokens": 65}, "truncate_prompt_tokens"
    ),
    "Input should be 'float'": (
        "/v1/embeddings", {"input": "a", "encoding_format": "hex"}, "encoding_format"
    ),
    "chat_template is given": (
        "/v1/embeddings", {"messages": [{"role": "user", "content": "a"}], "chat_template": "x"},
        "chat_template",
    ),
    "priority is 3": ("/v1/embeddings", {"input": "a", "priority": 3}, "priority"),
    "does not support Classification API": ("/classify", {"input": "a"}, None),
    "Unknown pooling task": ("/pooling", {"input": "a", "task": "guess"}, None),
    "Unsupported task: 'classify'": ("/pooling", {"input": "a", "task": "classify"}, None),
    "either 1:1, 1:N or N:N": ("/score", {"text_1": ["a", "b"], "text_2": ["c"] * 3}, None),
    "texts to compare are missing": ("/score", {"text_1": "a"}, "queries"),
    "documents is empty": ("/rerank", {"query": "a", "documents": []}, "documents"),
    "MultiModalParam is not supported": ("/rerank", {"query": "a", "documents": [{}]}, "documents"),
    "the texts hold {}": ("/score", {"text_1": {}, "text_2": "b"}, "text_1"),
    "max_tokens_per_query (64)": (
        "/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_query": 64},
        "max_tokens_per_query",
    ),
    "truncate=NONE": (
        "/v2/embed", {"texts": ["time " * 9], "truncate": "NONE", "max_tokens": 3}, "max_tokens"
    ),
    "One of texts, images, or inputs": ("/v2/embed", {"texts": []}, "texts"),
    "does not define any input_type": (
        "/v2/embed", {"texts": ["a"], "input_type": "query"}, "input_type"
    ),
    "inputs has the part {'type': 'text'}": (
        "/v2/embed", {"inputs": [{"content": [{"type": "text"}]}]}, "inputs"
    ),
    "this model takes text only": ("/v2/embed", {"images": ["data:image/png;base64,"]}, "messages"),
    "documents is missing": ("/rerank", {"query": "a"}, "documents"),
    "Chat Completions API": ("/v1/chat/completions", {"messages": []}, None),
    "Completions API": ("/v1/completions", {"prompt": "a"}, None),
}  # fmt: skip


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_a_400(client: TestClient, message: str) -> None:
    path, body, param = BAD[message]
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"] and error["param"] == param


def test_a_model_that_writes_has_no_embeddings() -> None:
    with serve(make_engine("storyteller", dtype="float32", **LIMITS)) as client:
        for path in ("/v1/embeddings", "/classify", "/pooling"):
            answer = client.post(path, json={"input": "a"})
            assert answer.status_code == 400 and "--runner pooling" in answer.text


def test_figures_count_pooled_prompts_and_keys_guard_the_routes(client: TestClient) -> None:
    def count(name: str) -> float:
        lines = client.get("/metrics").text.splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"vllm:{name}"))

    before = (
        count("prompt_tokens_total"),
        count('request_success_total{engine="0",finished_reason="stop"'),
    )
    num_tokens = ask(client, "/v1/embeddings", input=TEXTS)["usage"]["prompt_tokens"]
    after = (
        count("prompt_tokens_total"),
        count('request_success_total{engine="0",finished_reason="stop"'),
    )
    assert (after[0] - before[0], after[1] - before[1]) == (num_tokens, 3)
    closed = serve(client.app.state.server.engine, api_keys=["k"])  # type: ignore[attr-defined]
    for path in (
        "/v1/embeddings",
        "/classify",
        "/pooling",
        "/score",
        "/rerank",
        "/v2/rerank",
        "/v2/embed",
    ):
        assert closed.post(path, json={}).status_code == 401


def test_async_encode_yields_once_and_can_be_left(tmp_path: Path) -> None:
    async def main() -> None:
        engine = make_engine(make(tmp_path, "embedder"), False, runner="pooling", **LIMITS)

        async def encode(prompt: list[int], **more: Any) -> list[Any]:
            return [o async for o in engine.encode(prompt, PoolingParams(), "same id", **more)]

        many = await asyncio.gather(*(encode(prompt) for prompt in PROMPTS * 20))
        wanted = [unit(hidden[-1]) for hidden in oracle("embedder")] * 20
        assert all(len(one) == 1 and one[0].request_id == "same id" for one in many)
        assert_equal([one[0].outputs.data for one in many], wanted)
        cut = await encode(PROMPTS[2], tokenization_kwargs={"truncate_prompt_tokens": 4})
        assert cut[0].prompt_token_ids == PROMPTS[2][:4]
        left = asyncio.create_task(encode(PROMPTS[2]))
        await asyncio.sleep(0)
        left.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left
        assert not engine.stats.requests and not engine.output_processor.completions
        with pytest.raises(ValueError, match="vocabulary ends at"):
            await encode([10_000])
        waiting = asyncio.create_task(encode(PROMPTS[2]))
        while not engine.num_unfinished_requests:
            await asyncio.sleep(0)
        await engine.abort("same id")
        with pytest.raises(EngineGenerateError, match="aborted"):
            await waiting

    asyncio.run(main())
