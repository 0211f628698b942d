"""Platforms: what each promises, which one an engine gets, and that no other file asks a device."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import mini_vllm
from mini_vllm import LLM, SamplingParams, platforms
from mini_vllm.attention import get_backend, selector
from mini_vllm.attention.selector import AttentionSelectorConfig, get_valid_backends
from mini_vllm.model import layers
from mini_vllm.platforms import pick_device, platform_of
from mini_vllm.platforms.cpu import CpuPlatform
from mini_vllm.platforms.cuda import CudaPlatform
from mini_vllm.platforms.interface import Platform
from mini_vllm.platforms.mps import MpsPlatform

ENGINE = Path(mini_vllm.__file__).parent
ASKS = re.compile(
    r"device\)?\.type\b|device_type [!=]= |is_cuda\b|torch\.(cuda|mps)\b|"
    r"device [!=]= \"(cpu|cuda|mps)|\"(cuda|mps)\"|startswith\(\"cuda"
)
ALLOWED = {
    "config/model.py": "names the devices in a docstring",
    "worker/cuda_graphs.py": "is the recorder that the Cuda platform names",
}


def test_only_platforms_ask_a_device_what_it_is() -> None:
    found = {
        str(file.relative_to(ENGINE))
        for file in ENGINE.rglob("*.py")
        if file.parent.name != "platforms" and ASKS.search(file.read_text(encoding="utf-8"))
    }
    assert found == set(ALLOWED), "ask `platform_of(device)` instead"


@pytest.fixture()
def anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forgets what was found of this machine, before the test, when called, and behind it."""

    def forget() -> None:
        platforms.forget()
        layers.compute_dtype.cache_clear()

    forget()
    yield forget
    monkeypatch.undo()
    forget()


@pytest.mark.parametrize(("there", "expected"), [(True, CudaPlatform), (False, CpuPlatform)])
def test_auto_is_a_gpu_where_there_is_one(
    there: bool, expected: type[Platform], monkeypatch: pytest.MonkeyPatch, anew: Callable[[], None]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert type(platforms.current_platform) is expected
    assert type(platform_of("auto")) is expected, "never mps unasked: it was never seen"


def test_one_platform_for_all_devices_of_a_kind() -> None:
    assert platform_of("cuda:1") is platform_of(torch.device("cuda")) is platform_of("cuda")
    assert not platform_of("meta").is_host and platform_of("meta").streams is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cuda", "device is 'cuda' but torch sees no CUDA device; use device='cpu', or install"),
        ("mps", "device is 'mps' but torch sees no Metal device; use device='cpu', or a Mac"),
        ("toaster", "device is 'toaster'; it must be 'auto', 'cpu', 'cuda' or 'mps', one with"),
    ],
)
def test_a_device_that_is_not_there(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=says):
        pick_device(name)
    with pytest.raises(ValueError, match=says):
        LLM("storyteller", device=name)


@pytest.mark.parametrize("name", ["cuda:2", "cuda:x"])
def test_gpus_are_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match=f"device is '{name}'; there are 2, counted from cuda:0"):
        pick_device(name)
    assert pick_device("cuda", 1) == torch.device("cuda:1"), "a worker's own"
    assert pick_device("cpu", 1) == torch.device("cpu"), "which all workers share"


# ---------------------------------------------------------------- attention backends
def test_every_reason_for_a_refusal_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(selector.BACKENDS, "absent", "no_such_package.attention.Fast")
    platform = CpuPlatform()
    monkeypatch.setattr(platform, "attention_backends", ("triton", "absent", "lost", "cpu"))
    valid, refused = get_valid_backends(platform, AttentionSelectorConfig(torch.float64))
    assert valid == ["cpu"]
    assert refused == {
        "triton": [
            "its kernels need a GPU; use one, or set TRITON_INTERPRET=1 to let Triton interpret "
            "them, slowly",
            "it has no kernels for torch.float64",
        ],
        "absent": ["ImportError: No module named 'no_such_package'"],
        "lost": ["it is not registered"],
    }


def test_a_backend_that_cannot_run_says_why() -> None:
    with pytest.raises(ValueError, match="backend 'triton' cannot run on mps: mps does not offer"):
        get_backend("mps", "triton")
    with pytest.raises(
        ValueError, match=r"'cpu' cannot run on cuda: cuda does not offer it, but t"
    ):
        get_backend("cuda", "cpu")


def test_no_backend_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuPlatform, "attention_backends", ("triton",))
    with pytest.raises(ValueError, match="no attention backend can run on cpu: triton: its kernel"):
        get_backend("cpu")


def test_a_backend_of_another_package_needs_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selector, "BACKENDS", dict(selector.BACKENDS))
    selector.register_backend("mine", "my_package.Mine")
    selector.register_backend("mine", "my_package.Mine")
    with pytest.raises(
        ValueError, match=r"'cpu' is mini_vllm\.attention\.cpu\.CpuAttention already"
    ):
        selector.register_backend("cpu", "my_package.Mine")


# ---------------------------------------------------------------- what a platform says
def test_a_dtype_that_the_device_lacks_is_refused_and_auto_takes_its_first(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from mini_vllm.engine.checked_config import make_engine_config

    own = property(lambda _: (torch.float16, torch.float32))
    monkeypatch.setattr(CpuPlatform, "supported_dtypes", own)
    with pytest.raises(ValueError, match="dtype is 'bfloat16'; device 'cpu' computes in float16, "):
        make_engine_config("storyteller", device="cpu", dtype="bfloat16")
    config = make_engine_config("storyteller", device="cpu")
    assert config.model.dtype == "float16" and "loaded as float16" in caplog.text


def test_workers_that_cannot_talk_are_refused() -> None:
    with pytest.raises(ValueError, match="2 workers cannot share a model on mps"):
        MpsPlatform().check_workers(2)
    MpsPlatform().check_workers(1)
    CpuPlatform().check_workers(2)


class StandIn(MpsPlatform):
    """What the Mps platform says, for tensors in main memory: nothing of the CPU's own is used."""

    device_type = "cpu"

    def check_device(self, name: str) -> None:
        """It is there."""

    def reclaimable_memory(self, device: torch.device) -> int:
        return 256 << 20

    def empty_cache(self) -> None: ...

    def synchronize(self, device: torch.device | None = None) -> None: ...


class NoFloat64(torch.utils._python_dispatch.TorchDispatchMode):
    """Metal has no float64: an operation that makes one fails, as it would there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.dtype == torch.float64:
            raise TypeError(f"{func} makes float64")
        return out


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_mps_on_a_stand_in(
    dtype: str, monkeypatch: pytest.MonkeyPatch, anew: Callable[[], None]
) -> None:
    """Greedy, sampled and with penalties, without an operation that Metal lacks."""
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    rich = SamplingParams(
        max_tokens=6, temperature=0.8, seed=3, top_p=0.9, top_k=20, presence_penalty=0.5, logprobs=2
    )
    prompts = ["Once upon a time", "The dog"]
    expected = LLM("storyteller", dtype="float32", num_gpu_blocks=64).generate(prompts, greedy)
    stand_in = functools.cache(StandIn)
    monkeypatch.setattr(platforms, "out_of_tree_platform", stand_in)
    anew()
    with NoFloat64():
        llm = LLM("storyteller", dtype=dtype, max_model_len=128)
        worker = llm.engine.core.executor.worker  # type: ignore[attr-defined]
        assert type(worker.backend).__name__ == "ReferenceAttention"
        assert worker.model.dtype == getattr(torch, dtype)
        assert llm.engine.core.config.scheduler.async_scheduling is False
        got = llm.generate(prompts, greedy)
        sampled = llm.generate(prompts, rich)
        llm.shutdown()
    if dtype == "float32":
        assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in expected]
    assert all(len(o.outputs[0].token_ids) == 6 for o in sampled)


@pytest.mark.skipif(
    not torch.backends.mps.is_available(), reason="not run: there is no Metal device here"
)
def test_mps_itself() -> None:
    """Of a Mac: the same greedy tokens as the CPU in float32, and a text in float16."""
    prompts = ["Once upon a time", "The dog"]
    greedy = SamplingParams(max_tokens=12, temperature=0.0)
    found = {}
    for device, dtype in (("cpu", "float32"), ("mps", "float32"), ("mps", "float16")):
        llm = LLM("storyteller", device=device, dtype=dtype, max_model_len=128)
        outputs = llm.generate(prompts, greedy)
        found[device, dtype] = [output.outputs[0].token_ids for output in outputs]
        llm.shutdown()
    assert found["mps", "float32"] == found["cpu", "float32"]
    assert [len(ids) for ids in found["mps", "float16"]] == [12, 12]


def test_mps_asks_metal_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 10 << 30)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 4 << 30)
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append(1))
    device, platform = torch.device("mps"), platform_of("mps")
    assert platform.reclaimable_memory(device) == 6 << 30
    assert platform.available_memory(device, 0.9) == 3 << 30, "the rest of the Mac needs memory"
    platform.synchronize(device)
    assert waited == [1]
