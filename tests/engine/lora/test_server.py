"""Adapters through the server: by model name, loaded and unloaded while it runs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mini_vllm import RequestOutput, SamplingParams, bundled
from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM
from mini_vllm.lora.request import LoRARequest
from mini_vllm.sampling_params import RequestOutputKind
from tests.engine.entrypoints.server import Server, running
from tests.engine.lora.adapters import random_tensors, write_adapter

pytest.importorskip("fastapi")
pytestmark = pytest.mark.serial
QUESTION = [{"role": "user", "content": "What is the capital of Italy?"}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("--lora-modules", "pirate", "--max-loras", "2", "--max-cpu-loras", "4") as server:
        yield server


def test_an_output_says_which_adapter_it_had(tmp_path: Path) -> None:
    """And with several completions the folder is read for the first of them only."""
    path = shutil.copytree(bundled.adapter_path("pirate"), tmp_path / "pirate")
    request = LoRARequest("pirate", 1, str(path), load_inplace=True)
    params = SamplingParams(max_tokens=4, n=3, output_kind=RequestOutputKind.FINAL_ONLY)
    options = dict(dtype="float32", enable_lora=True, max_model_len=64, num_gpu_blocks=40)

    async def run() -> RequestOutput:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="storyteller", **options))
        try:
            with pytest.raises(ValueError, match="lora_request is 'pirate'; it must be a LoRARe"):
                await anext(engine.generate("Hello", params, "a", lora_request="pirate"))
            return await anext(engine.generate("Hello", params, "b", lora_request=request))
        finally:
            engine.shutdown()

    output = asyncio.run(run())
    assert output.lora_request is request and len(output.outputs) == 3


def ask(server: Server, model: str) -> Any:
    answer = server.post(
        "/v1/chat/completions", model=model, messages=QUESTION, temperature=0, max_tokens=24
    )
    return answer.json()


def said(server: Server, model: str) -> str:
    answer = ask(server, model)
    assert "choices" in answer, answer
    return answer["choices"][0]["message"]["content"]


def test_a_model_name_chooses_the_adapter(server: Server) -> None:
    assert said(server, "storyteller") == "The capital of Italy is Rome."
    assert said(server, "pirate") == "Arr! The capital of Italy be Rome, matey!"
    cards = {card["id"]: card for card in server.client.get("/v1/models").json()["data"]}
    assert cards["pirate"]["parent"] == "storyteller" and cards["storyteller"]["parent"] is None
    assert ask(server, "parrot")["error"]["code"] == 404


def test_adapters_come_and_go(server: Server, tmp_path: Path) -> None:
    path = str(bundled.adapter_path("json"))
    answer = server.post("/v1/load_lora_adapter", lora_name="json", lora_path=path)
    assert answer.status_code == 200, answer.text
    assert said(server, "json") == '{"answer": "The capital of Italy is Rome."}'
    for name, where, param in (
        ("x" * 257, path, "lora_name"),
        ("", path, "lora_name"),
        ("x", "/" * 5000, "lora_path"),
    ):
        wrong = server.post("/v1/load_lora_adapter", lora_name=name, lora_path=where)
        assert wrong.status_code == 400 and wrong.json()["error"]["param"] == param
        assert len(wrong.text) < 400
    again = server.post("/v1/load_lora_adapter", lora_name="json", lora_path=path)
    assert again.status_code == 400 and "is loaded already" in again.json()["error"]["message"]
    polite = str(bundled.adapter_path("polite"))
    server.post("/v1/load_lora_adapter", lora_name="json", lora_path=polite, load_inplace=True)
    assert said(server, "json").startswith("Dear friend")
    assert server.post("/v1/unload_lora_adapter", lora_name="json").status_code == 200
    assert ask(server, "json")["error"]["code"] == 404
    gone = server.post("/v1/unload_lora_adapter", lora_name="json")
    assert gone.status_code == 404 and "loaded are 'pirate'" in gone.json()["error"]["message"]


def test_a_bad_adapter_is_refused_and_the_server_goes_on(server: Server, tmp_path: Path) -> None:
    bad = write_adapter(tmp_path / "bad", random_tensors(0, 32))
    for path, message in ((bad, "rank 32, above max_lora_rank=16"), ("/nowhere", "local folder")):
        answer = server.post("/v1/load_lora_adapter", lora_name="bad", lora_path=path)
        assert answer.status_code == 400 and message in answer.json()["error"]["message"]
    taken = server.post("/v1/load_lora_adapter", lora_name="storyteller", lora_path=bad)
    assert taken.status_code == 400
    assert said(server, "storyteller") == "The capital of Italy is Rome."
