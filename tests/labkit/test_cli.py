"""The command table: honest about what is missing, and quick."""

from __future__ import annotations

import errno
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from labkit import cli
from labkit.course.root import ROOT
from labkit.quality import checks
from labkit.setup.requirements import requirements


def test_a_command_that_is_not_built_says_so_and_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.COMMANDS, "soon", cli.Command("labkit.no_such_module:main", "later"))
    assert cli.main(["soon"]) == 2
    assert capsys.readouterr().out == "labkit: `soon` is not built yet (later).\n"


def test_a_missing_function_counts_as_not_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(
        cli.COMMANDS, "soon", cli.Command("labkit.quality.checks:nothing", "later", ())
    )
    assert cli.main(["soon"]) == 2
    assert "not built yet" in capsys.readouterr().out


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["docter"]) == 2
    assert "did you mean `doctor`?" in capsys.readouterr().out


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from labkit.cli import main; main(['--help', '--all']);"
        "sys.exit(any(n in sys.modules for n in ('torch', 'typer', 'rich', 'mini_vllm')))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, "--help imported a package that is not needed for it"
    for name in cli.COMMANDS:
        assert f"\n  {name} " in done.stdout


def test_help_shows_authors_commands_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert (f"\n  {name} " in shown) == (command.section != cli.AUTHORS), name
    assert "--help --all" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nonsense"], "No such option: --nonsense; `python -m labkit lab --help` lists"),
        (["3", "hello"], "Got unexpected extra argument(s) (hello); `python -m labkit lab"),
        (["3", "--task"], "Option '--task' requires an argument; `python -m labkit lab"),
    ],
)
def test_words_that_a_command_does_not_take_are_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lab", *words]) == 2
    told = capsys.readouterr()
    assert told.out == "" and said in told.err and told.err.count("\n") == 1


def test_typer_functions_get_their_arguments_and_give_their_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    def greet(name: str, loud: bool = False) -> None:
        print(name.upper() if loud else name)
        raise typer.Exit(3)

    module = types.ModuleType("labkit_greeting")
    module.greet = greet  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "labkit_greeting", module)
    monkeypatch.setattr(cli, "is_built", lambda command: True)
    monkeypatch.setitem(cli.COMMANDS, "greet", cli.Command("labkit_greeting:greet", "hello"))
    assert cli.main(["greet", "you", "--loud"]) == 3
    assert capsys.readouterr().out == "YOU\n"
    assert cli.main(["greet"]) == 2  # the name is missing


def test_what_the_system_refuses_is_a_sentence_whichever_command_it_was(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not every command has a guard of its own, and a full disk may meet any of them."""
    module = types.ModuleType("refused")

    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a/page.html")

    module.plain, module.with_words = full, lambda words: full()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "refused", module)
    monkeypatch.setattr(cli, "is_built", lambda _: True)
    for name, words in (("plain", False), ("with_words", True)):
        row = cli.Command(f"refused:{name}", "", (), argv=words)
        monkeypatch.setitem(cli.COMMANDS, "read", row)
        assert cli.main(["read"]) == 2
        said = capsys.readouterr().err
        assert said.startswith("a/page.html: No space left on device; the disk is full: free some")


def test_an_environment_that_is_closed_is_a_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a .venv that root has made for another user."""

    def closed(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", ".venv/bin/python")

    monkeypatch.setattr(cli.bootstrap, "enter", closed)
    assert cli.main(["progress"]) == 2
    assert capsys.readouterr().err.startswith(".venv/bin/python: Permission denied; you may not")


def test_a_module_runs_as_python_m_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shout.py").write_text("import sys; print(sys.argv[1:]); sys.exit('too loud')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert cli.run_module("shout", ["a", "b"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("['a', 'b']\n", "too loud\n")


def test_every_command_has_help_and_known_groups() -> None:
    for name, command in cli.COMMANDS.items():
        assert command.help, name
        requirements(command.needs)


# ---------------------------------------------------------------- the stages of make test
def test_the_quick_tests_look_into_every_package_of_the_engine() -> None:
    assert all((ROOT / "tests" / "engine" / name).is_file() for name in checks.SMOKE)
    tested = {path.name for path in (ROOT / "tests" / "engine").iterdir() if path.is_dir()}
    packages = {path.parent.name for path in ROOT.glob("mini_vllm/*/__init__.py")}
    assert tested & packages <= {name.partition("/")[0] for name in checks.SMOKE}


def stage(name: str, code: str) -> checks.Stage:
    return checks.Stage(name, ("-c", code))


def test_all_stages_run_and_one_failure_is_enough(capfd: pytest.CaptureFixture[str]) -> None:
    bad = stage("bad", "print('the reason'); raise SystemExit(4)")
    assert checks.run([bad, stage("good", "pass")]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "the reason"
    assert lines[1].startswith("FAIL bad")
    assert lines[2].startswith("ok   good")
    assert lines[3] == "FAILED: bad"


def test_quiet_success_prints_one_line_a_stage(capfd: pytest.CaptureFixture[str]) -> None:
    assert checks.run([stage("good", "print('chatter')")]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1


def test_clean_removes_caches_and_leaves_labs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    for name in ("labs/03/__pycache__", ".ruff_cache", ".labkit", ".venv/__pycache__", "site"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "labs/03/mine.py").touch()
    assert checks.clean([]) == 0
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    kept = {"labs", "labs/03", "labs/03/mine.py", ".labkit", ".venv", ".venv/__pycache__"}
    assert left == kept


def test_an_interrupt_while_a_command_is_imported_is_one_line(tmp_path: Path) -> None:
    """It takes a third of a second, in which Ctrl-C may be pressed."""
    (tmp_path / "difflib.py").write_text("raise KeyboardInterrupt\n")
    words = [sys.executable, "-m", "labkit", "lab", "02"]
    env = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0 and done.stderr == "\nInterrupted.\n"


def test_the_script_of_a_wheel_takes_its_words_from_the_command_line() -> None:
    """It calls what `pyproject.toml` names without an argument. The course has no script: it works
    from a checkout."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert list(scripts) == ["mini-vllm"]
    module, _, function = scripts["mini-vllm"].partition(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    words = [sys.executable, "-c", code, "no-such-command"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "no-such-command" in done.stderr
