"""Packages that add to the engine: found by entry points, chosen, refused, and left out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.course.root import find_root
from mini_vllm import LLM, SamplingParams, platforms, plugins
from mini_vllm.attention import selector
from mini_vllm.executor import worker
from mini_vllm.model import families, layers, registry
from mini_vllm.platforms.cpu import CpuPlatform
from mini_vllm.quantization import config as quantization

EXAMPLE = find_root() / "docs" / "plugin"
GREEDY = SamplingParams(max_tokens=8, temperature=0.0)
Install = Callable[..., None]


@pytest.fixture()
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a package beside its `.dist-info` on the path, as `pip` does, for one test."""

    def forget() -> None:
        platforms.forget()
        plugins.installed.cache_clear()
        plugins.load_general_plugins.cache_clear()
        layers.compute_dtype.cache_clear()

    def put(name: str, code: str, **groups: dict[str, str]) -> None:
        (tmp_path / f"{name}.py").write_text(code)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = []
        for group, plugs in groups.items():
            lines.append(f"[mini_vllm.{group}_plugins]")
            lines += [f"{key} = {value}" for key, value in plugs.items()]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        forget()

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(selector, "BACKENDS", dict(selector.BACKENDS))
    for table, names in (
        (registry.MODELS, registry.MODELS),
        (families.FAMILIES, families.FAMILIES),
        (quantization.FORMATS, quantization.FORMATS),
    ):
        for key in ("TutorForCausalLM", "tutor_fp8", "MineForCausalLM", "mine"):
            if key not in names:
                monkeypatch.setitem(table, key, None)  # type: ignore[call-overload]
                del table[key]  # type: ignore[arg-type]
    before = set(sys.modules)
    yield put
    monkeypatch.undo()
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    forget()


def test_the_example_changes_backend_and_dtype(install: Install, tmp_path: Path) -> None:
    """By its entry points alone, read from its own pyproject.toml."""
    expected = LLM("storyteller", dtype="float32", num_gpu_blocks=64).generate("Once", GREEDY)
    shutil.copytree(EXAMPLE / "tutor", tmp_path / "tutor")
    points = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    install(
        "unused",
        "",
        **{name.split(".")[1].removesuffix("_plugins"): points[name] for name in points},
    )
    llm = LLM("storyteller", num_gpu_blocks=64)
    own = llm.engine.core.executor.worker  # type: ignore[attr-defined]
    assert type(own.backend).__name__ == "CountingAttention"
    assert type(own.platform).__name__ == "TutorPlatform"
    assert own.model.dtype == torch.float32 and llm.engine.core.config.model.dtype == "float32"
    got = llm.generate("Once", GREEDY)
    assert got[0].outputs[0].token_ids == expected[0].outputs[0].token_ids
    assert type(own.backend).calls == 8 * own.model.config.num_hidden_layers
    assert "TutorForCausalLM" in families.known() and "tutor_fp8" in quantization.FORMATS
    with pytest.raises(
        ValueError, match="dtype is 'bfloat16'; device 'auto' computes in float32; "
    ):
        LLM("storyteller", dtype="bfloat16")
    with pytest.raises(
        ValueError, match="'triton' cannot run on cpu: cpu does not offer it, but c"
    ):
        LLM("storyteller", attention_backend="triton")


BROKEN = """
import mini_vllm.model.registry as registry
def fails(): raise RuntimeError("no driver")
def fine(): registry.register_model("MineForCausalLM", "mini_vllm.model.llama:LlamaForCausalLM")
def takes(): registry.register_model("LlamaForCausalLM", "elsewhere:Model")
def lost(): return "no_such_package.Platform"
def no_platform(): return "mini_vllm.plugins.Path"
number = 3
"""


def test_a_plugin_that_fails_is_named_and_the_others_go_on(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    general = {
        "bad": "broken:fails",
        "gone": "broken:nothing",
        "good": "broken:fine",
        "greedy": "broken:takes",
        "number": "broken:number",
    }
    platform = {"lost": "broken:lost", "odd": "broken:no_platform", "worse": "broken:fails"}
    install("broken", BROKEN, general=general, platform=platform)
    plugins.load_general_plugins()
    assert type(platforms.current_platform) is CpuPlatform
    assert "MineForCausalLM" in families.known()
    said = [record.getMessage() for record in caplog.records]
    for name, why in (
        ("plugin 'bad'", "RuntimeError: no driver"),
        ("plugin 'gone' (broken:nothing of broken 1.0)", "AttributeError"),
        ("plugin 'greedy'", "'LlamaForCausalLM' is run by <class"),
        ("plugin 'number' (broken:number of broken 1.0)", "it is no function"),
        ("platform plugin 'lost'", "No module named 'no_such_package'"),
        ("platform plugin 'odd'", "ImportError"),
        ("platform plugin 'worse'", "RuntimeError: no driver"),
    ):
        assert any(name in line and why in line for line in said), (name, said)
    assert len(said) == 7


def test_two_plugins_of_one_name_are_refused(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("first", "def f(): ...", general={"same": "first:f"})
    install("second", "def f(): ...", general={"same": "second:f"})
    says = r"two plugins have the same name: 'same' \((first|second):f of .* and 'same' \("
    with pytest.raises(ValueError, match=says):
        plugins.load_general_plugins()
    monkeypatch.setenv("MINI_VLLM_PLUGINS", "another")
    plugins.load_general_plugins()


def test_two_platforms_are_refused_until_one_is_chosen(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from mini_vllm.platforms.cpu import CpuPlatform\n"
        "class A(CpuPlatform): ...\nclass B(CpuPlatform): ...\n"
        "def a(): return 'two.A'\ndef b(): return 'two.B'\ndef none(): return None\n"
    )
    install("two", code, platform={"a": "two:a", "b": "two:b", "none": "two:none"})
    with pytest.raises(ValueError, match=r"platform plugins \['a', 'b'\] each bring a platform, "):
        platforms.platform_of("cpu")
    monkeypatch.setenv("MINI_VLLM_PLUGINS", "b, none")
    platforms.forget()
    assert type(platforms.platform_of("cpu")).__name__ == "B"
    assert type(platforms.platform_of("cuda")).__name__ == "CudaPlatform"


def test_an_empty_choice_loads_none_and_a_wrong_one_is_told(
    install: Install, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install("one", "def f(): raise SystemExit", general={"one": "one:f"})
    monkeypatch.setenv("MINI_VLLM_PLUGINS", "")
    plugins.load_general_plugins()
    assert not caplog.records
    monkeypatch.setenv("MINI_VLLM_PLUGINS", "two")
    platforms.forget()
    platforms.platform_of("cpu")
    assert "MINI_VLLM_PLUGINS names ['two']; installed are ['one']" in caplog.text


def test_names_that_are_taken(install: Install) -> None:
    registry.register_model("MineForCausalLM", "a:B")
    registry.register_model("MineForCausalLM", "a:B")
    with pytest.raises(
        ValueError, match="'MineForCausalLM' is run by a:B already; c:D cannot replace it"
    ):
        registry.register_model("MineForCausalLM", "c:D")
    with pytest.raises(ValueError, match="'MixtralForCausalLM' is run by the table of a family"):
        registry.register_model("MixtralForCausalLM", "c:D")
    with pytest.raises(
        ValueError, match="'gptq' is read by GPTQConfig already; register Fp8Config"
    ):
        quantization.register_quantization_config("gptq")(quantization.Fp8Config)
    with pytest.raises(ValueError, match="int must be a subclass of QuantizationConfig"):
        quantization.register_quantization_config("mine")(int)  # type: ignore[arg-type]


def test_a_registered_model_runs(install: Install, tmp_path: Path) -> None:
    folder = Path(worker.__file__).parents[1] / "bundled" / "storyteller"
    copy = shutil.copytree(folder, tmp_path / "mine")
    text: dict[str, Any] = json.loads((copy / "config.json").read_text())
    architecture = text["architectures"][0]
    (copy / "config.json").write_text(json.dumps(text | {"architectures": ["MineForCausalLM"]}))
    found = registry.MODELS[architecture]
    registry.register_model("MineForCausalLM", found, families.FAMILIES[architecture])
    got = LLM(str(copy), num_gpu_blocks=64).generate("Once", GREEDY)
    expected = LLM("storyteller", num_gpu_blocks=64).generate("Once", GREEDY)
    assert got[0].outputs[0].text == expected[0].outputs[0].text


PROGRAM = """
import json
from mini_vllm import LLM, SamplingParams
llm = LLM("storyteller", num_gpu_blocks=64)
worker = llm.engine.core.executor.worker
out = llm.generate("Once", SamplingParams(max_tokens=4, temperature=0.0))
print(json.dumps([type(worker.backend).__name__, str(worker.model.dtype), out[0].outputs[0].text]))
"""


@pytest.mark.slow
def test_the_example_is_built_installed_and_used(tmp_path: Path) -> None:
    """A wheel from its folder, `pip install --target`, and a program that knows nothing of it."""
    source = shutil.copytree(EXAMPLE, tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "-q"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run(wheel, check=True, timeout=600)
    (built,) = tmp_path.glob("*.whl")
    target = tmp_path / "target"
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(built)]
    subprocess.run(install, check=True, timeout=600)
    said = {}
    for chosen in (None, ""):
        env = os.environ | {"PYTHONPATH": f"{target}{os.pathsep}{find_root()}"}
        if chosen is not None:
            env["MINI_VLLM_PLUGINS"] = chosen
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True,
            check=True, timeout=600,
        )  # fmt: skip
        said[chosen] = json.loads(done.stdout.splitlines()[-1])
    assert said[None][:2] == ["CountingAttention", "torch.float32"]
    assert said[""][0] == "CpuAttention"
    assert said[None][2] == said[""][2]
