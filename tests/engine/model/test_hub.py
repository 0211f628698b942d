"""Models by name, against a hub of our own: what is downloaded, what is kept, what is refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from mini_vllm import LLM, SamplingParams, bundled, hub
from mini_vllm.config import EngineConfig
from mini_vllm.entrypoints.cli import main
from tests.engine.model.loopback_hub import SHA, LoopbackHub

NAME = "library/storyteller-1M"
PARAMS = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def expected() -> str:
    llm = LLM("storyteller-draft")
    return llm.generate("Once upon a time", PARAMS, use_tqdm=False)[0].outputs[0].text


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small bundled model in two shards, with files beside it that are not needed."""
    folder = tmp_path_factory.mktemp("repository") / "model"
    shutil.copytree(bundled.path("storyteller-draft"), folder)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, weight_map = sorted(tensors), {}
    for index, part in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-0000{index}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    (folder / hub.INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / "consolidated.safetensors").write_bytes(b"another copy")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "original").mkdir()
    (folder / "original" / "model.safetensors").write_bytes(b"a third copy")
    return folder


@pytest.fixture
def server(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # read when it was imported
    with LoopbackHub({NAME: repository}) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        yield running


def error_of(name: str, cache: Path, **options: str) -> str:
    with pytest.raises((OSError, ValueError)) as caught:
        hub.folder(name, download_dir=str(cache), **options)
    message = str(caught.value)
    assert "\n" not in message and message[0] != "[", message
    return message


def test_a_name_is_as_good_as_a_folder(server: LoopbackHub, tmp_path: Path, expected: str) -> None:
    llm = LLM(NAME, download_dir=str(tmp_path))
    output = llm.generate("Once upon a time", PARAMS, use_tqdm=False)[0]
    assert output.outputs[0].text == expected
    assert llm.apply_chat_template([{"role": "user", "content": "Hi"}])  # its template came, too
    loaded = set(server.bytes_sent)
    assert {"config.json", "tokenizer.json", hub.INDEX} <= loaded
    assert not loaded & {"consolidated.safetensors", "pytorch_model.bin", "original"}
    weights = [name for name in server.requests if name.endswith(".safetensors")]
    assert weights and not any("original" in name for name in weights)


def test_what_is_here_is_not_loaded_again(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hub.folder(NAME, download_dir=str(tmp_path))
    sent = dict(server.bytes_sent)
    assert hub.folder(NAME, download_dir=str(tmp_path)) == first
    assert server.bytes_sent == sent
    assert hub.folder(NAME, revision=SHA, download_dir=str(tmp_path)) == first
    server.broken = True  # a hub that is down, and a network that is
    assert hub.folder(NAME, download_dir=str(tmp_path)) == first
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert hub.folder(NAME, download_dir=str(tmp_path)) == first
    before = len(server.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.folder(NAME, download_dir=str(tmp_path)) == first
    assert len(server.requests) == before


SHARD = "model-00002-of-00002.safetensors"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library writes small pieces, and does not wait before it tries again."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(time, "sleep", lambda _: None)


def test_a_broken_connection_is_taken_up_where_it_broke(
    server: LoopbackHub, tmp_path: Path, impatient: None
) -> None:
    wanted = server.repositories[NAME] / SHARD
    server.cut[SHARD], server.keeps_cutting = 200_000, False
    folder = hub.folder(NAME, download_dir=str(tmp_path))
    assert (folder / SHARD).read_bytes() == wanted.read_bytes()
    assert server.ranges == ["bytes=200000-"]
    assert server.bytes_sent[SHARD] == wanted.stat().st_size


def test_half_a_download_counts_for_nothing(
    server: LoopbackHub, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.cut[SHARD] = 200_000
    assert "run this again: files that are whole are kept" in error_of(NAME, tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        assert "is not whole" in error_of(NAME, tmp_path)
    server.cut.clear()
    server.bytes_sent.clear()
    hub.folder(NAME, download_dir=str(tmp_path))
    assert set(server.bytes_sent) == {SHARD}


def test_a_missing_shard_is_noticed_offline(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub.folder(NAME, download_dir=str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (folder / "model-00001-of-00002.safetensors").unlink()
    assert "unset HF_HUB_OFFLINE" in error_of(NAME, tmp_path)


def test_random_weights_and_tokenizers_need_no_weights(server: LoopbackHub, tmp_path: Path) -> None:
    options = {"download_dir": str(tmp_path), "max_model_len": 32}
    config = EngineConfig.from_kwargs(NAME, load_format="dummy", **options)
    assert Path(config.model.model, "config.json").is_file()
    config = EngineConfig.from_kwargs("storyteller", tokenizer=NAME, **options)
    assert Path(str(config.model.tokenizer), "tokenizer.json").is_file()
    assert not any(name.endswith(".safetensors") for name in server.bytes_sent)


def test_each_failure_is_one_sentence_with_the_fix(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"{server.endpoint}/{NAME}"
    assert "check the spelling" in error_of("library/storyteler", tmp_path)
    assert f"choose one that {page}/tree/main lists" in error_of(NAME, tmp_path, revision="v9")
    server.gated.add(NAME)
    assert f"accept its terms at {page}, then set HF_TOKEN" in error_of(NAME, tmp_path)
    assert "gated" in error_of(NAME, tmp_path, token="wrong")
    assert hub.folder(NAME, None, str(tmp_path / "gated"), "let-me-in").is_dir()
    monkeypatch.setenv("HF_TOKEN", "let-me-in")
    assert hub.folder(NAME, None, str(tmp_path / "token")).is_dir()
    server.private.add(NAME)
    assert "if it is private, set HF_TOKEN" in error_of(NAME, tmp_path)
    server.private.clear()
    free = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: free)
        message = error_of(NAME, tmp_path / "full")
    assert "where 1.0 kB are free; make room, or pass download_dir" in message
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "check the network (or HF_ENDPOINT)" in error_of(NAME, tmp_path / "new")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "unset HF_HUB_OFFLINE" in error_of(NAME, tmp_path / "new")


def test_what_is_no_model_is_refused(server: LoopbackHub, tmp_path: Path) -> None:
    for files, message in (
        (["README.md"], "has no config.json"),
        (["config.json", "pytorch_model.bin"], "no .safetensors files, only pytorch_model.bin"),
    ):
        folder = tmp_path / message[:8]
        folder.mkdir()
        for file in files:
            (folder / file).write_text("{}")
        server.repositories["a/b"] = folder
        assert message in error_of("a/b", tmp_path / "cache")


def test_names_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"OWNER/NAME.*did you mean 'storyteller'"):
        hub.folder("storyteler")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert hub.folder("owner/name") == Path("owner/name")  # a folder goes first
    for path in ("/no/such/model", "./no/model", "a/b/c"):
        assert hub.folder(path) == Path(path)


def test_the_command_line_takes_a_name(
    server: LoopbackHub, tmp_path: Path, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["generate", "Once upon a time", "--model", NAME, "--download-dir", str(tmp_path)]
    command += ["--temperature", "0", "--max-tokens", "6"]
    assert main(command) == 0
    assert capfd.readouterr().out.strip() == expected.strip()
    assert main([*command, "--revision", "v9"]) == 2
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"mini_vllm generate: {NAME!r} has no revision 'v9'; leave revision")


def test_a_gguf_file_of_a_repository(server: LoopbackHub, tmp_path: Path) -> None:
    """By its name, or by the type in its name; nothing else is loaded, and it is found offline."""
    repository = tmp_path / "repository"
    repository.mkdir()
    for name in ("tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "README.md"):
        (repository / name).write_bytes(b"GGUF" + name.encode())
    server.repositories["library/tiny-GGUF"] = repository
    cache = str(tmp_path / "cache")
    for wanted in ("library/tiny-GGUF/tiny-Q8_0.gguf", "library/tiny-GGUF:Q8_0"):
        file = hub.folder(wanted, download_dir=cache)
        assert file.read_bytes() == b"GGUFtiny-Q8_0.gguf"
        assert [path.name for path in file.parent.iterdir()] == ["tiny-Q8_0.gguf"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        assert hub.folder("library/tiny-GGUF:q8_0", download_dir=cache) == file
        with pytest.raises(FileNotFoundError, match=r"HF_HUB_OFFLINE forbids"):
            hub.folder("library/tiny-GGUF:Q4_0", download_dir=cache)
    with pytest.raises(FileNotFoundError, match=r"no GGUF files called 'Q5_K'; .* tiny-Q4_0\.gguf"):
        hub.folder("library/tiny-GGUF:Q5_K", download_dir=cache)
    with pytest.raises(FileNotFoundError, match="has no such model"):
        hub.folder("library/none:Q4_0", download_dir=cache)
