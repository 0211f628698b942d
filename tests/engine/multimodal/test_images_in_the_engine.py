"""What can go wrong with images: bad ones, broken encoders, other processes. And chats."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from seeing import PAD, picture, prompt, save, words
from starlette.datastructures import Headers

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import MultiModalConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.engine.clients.messages import decode_request, encode
from mini_vllm.entrypoints.openai.chat import ChatAnswer
from mini_vllm.entrypoints.openai.protocol import ChatCompletionRequest, TokenizeRequest
from mini_vllm.entrypoints.openai.tokenization import create_tokenize
from mini_vllm.multimodal import processing
from mini_vllm.multimodal.chat import PLACE_IN_CHAT, take_images, with_placeholders
from mini_vllm.multimodal.hasher import hash_image
from mini_vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from mini_vllm.multimodal.media import MediaURL
from mini_vllm.multimodal.processing import expand_placeholders

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
GOOD = prompt(words(1, 3), picture(1), words(2, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("seeing"))


def load(folder: Path, **options: Any) -> LLM:
    usual = {"num_gpu_blocks": 64, "block_size": 4, "max_model_len": 128, "dtype": "float32"}
    return LLM(folder, skip_tokenizer_init=True, **(usual | options))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return load(folder, limit_mm_per_prompt={"image": 3})


def with_image(image: Any, count: int = 1) -> dict[str, Any]:
    return {"prompt_token_ids": [5, *[PAD] * count, 6], "multi_modal_data": {"image": image}}


def torn() -> Image.Image:
    stream = io.BytesIO()
    picture(1, 64, 64).save(stream, "PNG")
    return Image.open(io.BytesIO(stream.getvalue()[:200]))


BAD = {
    "torn": (with_image([picture(1), torn()], 2), "image 1 cannot be decoded"),
    "path": (with_image("cat.png"), "image 0 is 'cat.png'; pass a PIL image"),
    "none in a list": (with_image([None]), "image 0 is None; pass a PIL image"),
    "too many": (
        with_image([picture(1)] * 4, 4),
        "brings 4 images; at most 3 are allowed (limit_mm_per_prompt)",
    ),
    "too few placeholders": (
        with_image([picture(1)] * 2),
        "1 image placeholder(s) <|image_pad|>, and 2 image(s)",
    ),
    "no picture": (with_image(None), "1 image placeholder(s) <|image_pad|>, and 0 image(s)"),
    "expanded already": (with_image(picture(1), 15), "15 image placeholder(s)"),
    "a stray placeholder": ([5, PAD, 6], "1 image placeholder(s) <|image_pad|>, and 0 image(s)"),
    "too long": (
        with_image([picture(n, 64, 64) for n in range(3)], 3),
        "194 input tokens, 192 of them images",
    ),
    "extreme": (with_image(picture(1, 2000, 4)), "2000x4: its sides differ by a factor of 500"),
    "modality": ({"prompt_token_ids": [5], "multi_modal_data": {"smell": 1}}, "only 'image'"),
    "no mapping": ({"prompt_token_ids": [5], "multi_modal_data": [1]}, "must be a mapping"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_refused_and_others_go_on(llm: LLM, name: str) -> None:
    bad, message = BAD[name]
    first, second, third = llm.generate([GOOD, bad, GOOD], GREEDY, use_tqdm=False)
    assert second.error is not None and message in second.error, second.error
    assert first.error is third.error is None
    assert first.outputs[0].token_ids == third.outputs[0].token_ids
    assert not llm.engine.core.scheduler.requests


def test_a_bomb_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="24x16, 384 pixels; at most 100 are decoded"):
        llm.generate(GOOD, GREEDY, use_tqdm=False)


def test_a_text_model_refuses_pictures() -> None:
    text_only = LLM("storyteller", num_gpu_blocks=32)
    with pytest.raises(ValueError, match="takes text only, it has no image encoder"):
        text_only.generate(with_image(picture(1)), GREEDY, use_tqdm=False)
    part = {"type": "image_pil", "image_pil": picture(1)}
    with pytest.raises(ValueError, match="takes text only"):
        text_only.chat([{"role": "user", "content": [part]}], GREEDY, use_tqdm=False)


def test_a_folder_without_image_processor_takes_text(folder: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).symlink_to(folder / file)
    llm = load(tmp_path)
    (output,) = llm.generate([[5, 6, 7]], GREEDY, use_tqdm=False)
    assert output.error is None
    with pytest.raises(ValueError, match="has no image processor"):
        llm.generate(GOOD, GREEDY, use_tqdm=False)


def test_smaller_pictures_by_option(folder: Path) -> None:
    llm = load(folder, mm_processor_kwargs={"size": {"shortest_edge": 64, "longest_edge": 256}})
    assert llm.engine.input_processor.images.largest == 4
    (output,) = llm.generate(with_image(picture(1, 64, 64)), GREEDY, use_tqdm=False)
    assert len(output.prompt_token_ids) == 2 + 4


def test_forbidden_chunks_need_room_for_the_largest(folder: Path) -> None:
    with pytest.raises(ValueError, match="largest image has 128 tokens and max_num_batched_tokens"):
        load(folder, disable_chunked_mm_input=True, max_num_batched_tokens=64)


# ------------------------------------------------------------------ failures


def encoder_of(llm: LLM) -> tuple[Any, Any]:
    return llm.engine.core.model, llm.engine.core.model_runner


@pytest.mark.parametrize("where", ["embed_multimodal", "forward"])
def test_a_failed_step_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    llm = load(folder)
    (before,) = llm.generate(GOOD, GREEDY, use_tqdm=False)
    model, runner = encoder_of(llm)
    other = prompt(words(5, 3), picture(7))
    with monkeypatch.context() as patch:
        patch.setattr(model, where, lambda *args, **kwargs: 1 / 0)
        (output,) = llm.generate([other], GREEDY, use_tqdm=False)
        assert "division by zero" in (output.error or "")
    manager = llm.engine.core.scheduler.encoder_cache_manager
    assert len(runner.encoder_cache) == len(manager.cached) == 1
    (again,) = llm.generate(GOOD, GREEDY, use_tqdm=False)
    assert again.outputs[0].token_ids == before.outputs[0].token_ids
    (output,) = llm.generate([other], GREEDY, use_tqdm=False)
    assert output.error is None


def test_nan_from_the_encoder_fails_the_requests_that_use_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load(folder)
    model, runner = encoder_of(llm)
    original = model.embed_multimodal

    def broken(**kwargs: Any) -> Any:
        rows = original(**kwargs)
        rows[0][:] = float("nan")
        return rows

    requests = [GOOD, [5, 6, 7], prompt(picture(9)), GOOD]
    with monkeypatch.context() as patch:
        patch.setattr(model, "embed_multimodal", broken)
        outputs = llm.generate(requests, GREEDY, use_tqdm=False)
    errors = [output.error for output in outputs]
    assert errors[1] is errors[2] is None
    assert "the encoder returned NaN" in errors[0] and "the encoder returned NaN" in errors[3]
    assert len(runner.encoder_cache) == 1
    (output,) = llm.generate(GOOD, GREEDY, use_tqdm=False)
    assert output.error is None


def test_an_interrupted_step_forgets_encodings(folder: Path) -> None:
    llm = load(folder)
    llm.generate(GOOD, GREEDY, use_tqdm=False)
    core = llm.engine.core
    core.undo()
    assert core.model_runner.encoder_cache == {}
    assert core.scheduler.encoder_cache_manager.cached == {}
    (output,) = llm.generate(GOOD, GREEDY, use_tqdm=False)
    assert output.error is None


# ------------------------------------------------------------------ names


def test_a_hash_covers_all_that_changes_the_result() -> None:
    pixels = np.arange(24 * 40, dtype=np.uint8).tobytes()
    wide, tall = (Image.frombytes("L", size, pixels) for size in ((40, 24), (24, 40)))
    assert wide.tobytes() == tall.tobytes()
    palette = Image.frombytes("P", (40, 24), pixels)
    palette.putpalette([n % 256 for n in range(768)])
    other = palette.copy()
    other.putpalette([255 - n % 256 for n in range(768)])
    names = {hash_image(image, {}) for image in (wide, tall, palette, other)}
    names |= {hash_image(wide, {"size": 5}), hash_image(wide.convert("RGB"), {})}
    assert len(names) == 6
    assert hash_image(wide, {"a": 1, "b": 2}) == hash_image(wide.copy(), {"b": 2, "a": 1})


def test_every_picture_moves_those_behind_it() -> None:
    expanded, places = expand_placeholders([1, 9, 2, 9, 9, 3], 9, [3, 1, 2])
    assert expanded == [1, 9, 9, 9, 2, 9, 9, 9, 3]
    assert [(p.offset, p.length) for p in places] == [(1, 3), (5, 1), (6, 2)]


def test_a_picture_is_processed_once(folder: Path) -> None:
    llm = load(folder)
    for _ in range(3):
        llm.generate([GOOD, prompt(picture(1))], GREEDY, use_tqdm=False)
    assert llm.engine.input_processor.images.num_processed == 1


def test_caches_of_pictures_are_forgotten_on_request(folder: Path) -> None:
    llm = load(folder)
    (before,) = llm.generate([prompt(picture(1))], GREEDY, use_tqdm=False)
    llm.reset_mm_cache()
    llm.engine.reset_encoder_cache()
    runner, manager = llm.engine.core.model_runner, llm.engine.core.scheduler.encoder_cache_manager
    assert runner.encoder_cache == {} and manager is not None and not manager.cached
    (after,) = llm.generate([prompt(picture(1))], GREEDY, use_tqdm=False)
    assert after.outputs[0].token_ids == before.outputs[0].token_ids
    assert llm.engine.input_processor.images.num_processed == 2


def test_threads_prepare_pictures_beside_each_other(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does: some keep what others drop."""
    monkeypatch.setattr(processing, "KEPT_PATCHES_BYTES", 4096)
    images = llm.engine.input_processor.images
    prompts = [prompt(picture(number % 7)) for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(
                lambda one: images.process(one["prompt_token_ids"], one["multi_modal_data"]),
                prompts,
            )
        )
    names = [features[0].identifier for _, features in made]
    assert names == [names[number % 7] for number in range(200)] and len(set(names)) == 7


def test_an_image_crosses_to_another_process() -> None:
    pixels = np.random.default_rng(0).random((4, 96), dtype=np.float32)
    data = {"pixel_values": pixels, "image_grid_thw": [1, 2, 2]}
    place = PlaceholderRange(1, 1, (True,))
    feature = MultiModalFeatureSpec(data, "image", "abc", place)
    sent = EngineCoreRequest("r", [1, 9], GREEDY, None, 0.0, mm_features=[feature])
    (got,) = decode_request(encode(sent)).mm_features
    assert (got.modality, got.identifier, got.mm_position) == ("image", "abc", place)
    assert np.array_equal(got.data["pixel_values"], pixels)
    assert got.data["image_grid_thw"] == [1, 2, 2]


def test_the_server_s_engine_sees(folder: Path, llm: LLM) -> None:
    from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM

    async def ask() -> list[int]:
        args = AsyncEngineArgs(
            str(folder), skip_tokenizer_init=True, num_gpu_blocks=64, block_size=4,
            max_model_len=128, dtype="float32",
        )  # fmt: skip
        engine = AsyncLLM.from_engine_args(args)
        try:
            async for output in engine.generate(GOOD, GREEDY.clone(), "r0"):
                last = output
            with pytest.raises(ValueError, match="image placeholder"):
                async for _ in engine.generate([5, PAD], GREEDY.clone(), "r1"):
                    pass
            return list(last.outputs[0].token_ids)
        finally:
            engine.shutdown()

    (wanted,) = llm.generate(GOOD, GREEDY, use_tqdm=False)
    assert asyncio.run(ask())[-4:] == wanted.outputs[0].token_ids


# ------------------------------------------------------------------ chats


def data_url(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def test_tokenize_counts_the_tokens_of_pictures() -> None:
    processor = LLM("storyteller-vision", num_gpu_blocks=32).engine.input_processor

    async def preprocess(prompt: Any) -> Any:
        return processor.preprocess(prompt)

    engine = SimpleNamespace(
        input_processor=processor, tokenizer=processor.tokenizer, preprocess=preprocess,
        limits=SimpleNamespace(max_model_len=128),
    )  # fmt: skip
    state: Any = SimpleNamespace(
        engine=engine,
        check_model=lambda name: None,
        chat_template=None,
        exclude_tools_when_tool_choice_none=False,
        template_kwargs=lambda request: {},
    )
    part = {"type": "image_url", "image_url": {"url": data_url(Image.new("RGB", (32, 32)))}}
    request = TokenizeRequest(messages=[{"role": "user", "content": [part]}])
    answer = asyncio.run(create_tokenize(state, request, Headers()))
    pad = processor.images.vision.image_token_id
    assert json.loads(bytes(answer.body))["tokens"].count(pad) == 16


def test_parts_become_text_with_placeholders() -> None:
    cat = picture(1)
    parts = [
        {"type": "text", "text": "What is"},
        {"type": "text", "text": "this?"},
        {"type": "image_pil", "image_pil": cat},
        {"type": "image_url", "image_url": {"url": "data:x"}},
        {"type": "text", "text": "And that?"},
    ]
    plain, images = take_images([{"role": "user", "content": parts}, {"role": "assistant"}])
    wanted = f"What is\nthis?{PLACE_IN_CHAT}{PLACE_IN_CHAT}And that?"
    assert plain[0]["content"].count("<|picture ") == 2
    assert with_placeholders(plain[0]["content"]) == wanted
    assert plain[1] == {"role": "assistant", "content": None}
    assert images == [cat, MediaURL("data:x")]
    with pytest.raises(ValueError, match="type text, image_pil or image_url"):
        take_images([{"role": "user", "content": [{"type": "audio"}]}])


def test_an_echo_shows_a_placeholder_and_no_mark() -> None:
    parts = [
        {"type": "text", "text": "It is"},
        {"type": "image_url", "image_url": {"url": "data:"}},
    ]
    messages, _ = take_images([{"role": "assistant", "content": parts}])
    request = ChatCompletionRequest(messages=messages, echo=True)
    nothing: Any = None
    answer = ChatAnswer(nothing, request, "", "", nothing, "assistant")
    assert answer.echoed == f"It is{PLACE_IN_CHAT}"


@pytest.mark.parametrize(("url", "message"), [
    ("data:image/png;base64,!!", "broken base64"),
    ("data:image/png;base64,aGVsbG8=", "its 5 bytes begin with b'hello', which is no format"),
    ("data:image/png,hello", "data URL begins with"),
    ("file:///etc/passwd", "reads no files; start it with --allowed-local-media-path"),
    ("http://169.254.169.254/latest", "fetches nothing from '169.254.169.254'; allowed are no"),
    ("http://[broken", "is not a URL"),
    (7, "image_url is 7"),
])  # fmt: skip
def test_an_address_that_cannot_be_used(llm: LLM, url: Any, message: str) -> None:
    bad = with_image(MediaURL(url))
    first, second = llm.generate([bad, GOOD], GREEDY, use_tqdm=False)
    assert message in (first.error or "") and second.error is None


def test_a_data_url_is_the_picture(llm: LLM) -> None:
    by_url = GOOD | {"multi_modal_data": {"image": [MediaURL(data_url(picture(1)))]}}
    first, second = llm.generate([by_url, GOOD], GREEDY, use_tqdm=False)
    assert first.outputs[0].token_ids == second.outputs[0].token_ids
    assert llm.engine.core.scheduler.encoder_cache_manager is not None


def test_what_is_transparent_was_sent_on_white_paper(llm: LLM) -> None:
    """As in vLLM's server. A picture that is passed as it is goes to the image processor so."""
    sticker = picture(1).convert("RGBA")
    sticker.putalpha(Image.linear_gradient("L").resize(sticker.size))
    paper = Image.new("RGBA", sticker.size, "white")
    paper.alpha_composite(sticker)
    sent = MediaURL(data_url(sticker))
    (seen,) = llm.engine.input_processor.images.check({"image": sent})
    assert seen.mode == "RGB"
    gap = np.abs(np.asarray(seen, int) - np.asarray(paper.convert("RGB"), int))
    assert gap.max() <= 1, "rounded"
    (plain,) = llm.engine.input_processor.images.check({"image": sticker})
    assert np.array_equal(plain, sticker.convert("RGB"))


def test_an_allowed_site_is_fetched_and_its_redirect_is_refused(llm: LLM) -> None:
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    stream = io.BytesIO()
    picture(1).save(stream, "PNG")

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            moved = self.path == "/moved"
            self.send_response(302 if moved else 200)
            self.send_header("Location", "/cat.png") if moved else None
            self.end_headers()
            self.wfile.write(b"" if moved else stream.getvalue())

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Site)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        site = f"http://127.0.0.1:{server.server_port}"
        image = MediaURL(f"{site}/cat.png").load(0, ["127.0.0.1"])
        assert image.size == picture(1).size
        with pytest.raises(ValueError, match=r"cannot be fetched .* 302"):
            MediaURL(f"{site}/moved").load(0, ["127.0.0.1"])
        with pytest.raises(ValueError, match="fetches nothing"):
            MediaURL(f"{site}/cat.png").load(0, ["example.com"])
        for end in ("/a cat.png", "/\u00e4.png", "/\ud800"):
            with pytest.raises(ValueError, match="image 0 cannot be fetched"):
                MediaURL(site + end).load(0, ["127.0.0.1"])
        for host in ("127.0.0.1:x", "127.0.0.1:99999", "127.0.0.1:1"):
            with pytest.raises(ValueError, match="image 0 cannot be fetched"):
                MediaURL(f"http://{host}/").load(0, ["127.0.0.1"])
    finally:
        server.shutdown()


def test_wrong_options_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="it must be a list of host names"):
        MultiModalConfig(allowed_media_domains="a.org")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mm_processor_kwargs is 3"):
        MultiModalConfig(mm_processor_kwargs=3)  # type: ignore[arg-type]


def test_torchvision_is_not_needed(folder: Path) -> None:
    """Even where it is installed it is not imported: tokens must not depend on that."""
    code = f"""
import sys
sys.modules["torchvision"] = None
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_images_in_the_engine import GOOD, GREEDY, load
from pathlib import Path
(output,) = load(Path({str(folder)!r})).generate(GOOD, GREEDY, use_tqdm=False)
assert output.error is None, output.error
print(type(load(Path({str(folder)!r})).engine.input_processor.images.image_processor).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Qwen2VLImageProcessorPil"
