"""``--help``: every option is described, in vLLM's groups, and a pattern finds what it names."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from mini_vllm.bundled import INSTALLED, NAMES, SEEING
from mini_vllm.config import CacheConfig, ModelConfig
from mini_vllm.config.descriptions import descriptions
from mini_vllm.config.engine import FLAT_SECTIONS
from mini_vllm.entrypoints.cli import build_parser, main
from mini_vllm.sampling_params import SamplingParams

COMMANDS = next(
    action.choices
    for action in build_parser()._actions
    if isinstance(action, argparse._SubParsersAction)
)
assert COMMANDS is not None
OF_THE_ENGINE = ["generate", "chat", "bench", "info", "serve", "demo", "break-even", "experts",
                 "run-batch"]  # fmt: skip


def screen(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code in (0, None)
    return capsys.readouterr().out


@pytest.mark.parametrize("command", [*COMMANDS])
def test_no_option_is_without_a_description(command: str) -> None:
    without = [action.option_strings or action.dest for action in COMMANDS[command]._actions
               if not action.help]  # fmt: skip
    assert not without


@pytest.mark.parametrize("section", [*FLAT_SECTIONS.values(), SamplingParams])
def test_a_field_is_described_where_it_is(section: type) -> None:
    described = descriptions(section)
    assert [f.name for f in dataclasses.fields(section) if not described.get(f.name)] == []


@pytest.mark.parametrize("command", OF_THE_ENGINE)
def test_groups_are_vllms(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = screen(f"{command} --help=listgroup", capsys)
    for name in ("ModelConfig", "CacheConfig", "SchedulerConfig", "ParallelConfig",
                 "MultiModalConfig", "LoRAConfig", "VllmConfig"):  # fmt: skip
        assert f"  {name}: " in said
    assert ("  Frontend: " in said) == (command in ("serve", "run-batch"))


def test_a_group_shows_its_options_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    said = screen("serve --help=CacheConfig", capsys)
    assert "--kv-cache-memory-bytes" in said and "--port" not in said
    assert "Bytes for the KV cache of one worker" in said
    assert screen("serve --help=cacheconfig", capsys) == said


@pytest.mark.parametrize("pattern", ["max-num-seqs", "max_num_seqs", "--max-num-seqs"])
def test_a_word_shows_the_options_that_have_it(
    pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = screen(f"serve --help={pattern}", capsys)
    assert "--max-num-seqs" in said and "--max-model-len" not in said
    assert "Most running requests" in said


def test_a_part_of_a_name_shows_several(capsys: pytest.CaptureFixture[str]) -> None:
    said = screen("generate --help=max", capsys)
    assert "--max-num-seqs" in said and "--max-tokens" in said and "--dtype" not in said


def test_what_matches_nothing_is_told_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    said = screen("serve --help=nonsense", capsys)
    assert "No group and no option matches 'nonsense'." in said and "--help=all" in said


@pytest.mark.parametrize("command", ["serve", "bench", "bench serve", "chat", "quantize"])
def test_all_shows_every_option(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = screen(f"{command} --help=all", capsys)
    parser = COMMANDS[command.replace(" ", "-")]
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS and action.option_strings:
            assert action.option_strings[0] in said
    assert said == screen(f"{command} --help", capsys)


def test_models_with_a_name_are_named_wherever_they_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known = (*NAMES, *SEEING, *INSTALLED)
    for said in (screen("serve --help=model", capsys), screen("quantize --help", capsys)):
        assert all(name in " ".join(said.split()) for name in known)
    assert main(["info", "nowhere"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in known)


def test_the_help_of_the_program_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    said = screen("--help", capsys)
    assert all(name in said for name in COMMANDS)


def test_defaults_of_descriptions_are_the_fields_own() -> None:
    assert descriptions(ModelConfig)["device"].startswith('"cpu"')
    assert descriptions(CacheConfig)["block_size"] == "Tokens per block."
