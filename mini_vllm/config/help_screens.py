"""``--help``, ``--help=all``, ``--help=listgroup`` and ``--help=PATTERN``, as vLLM's commands have.

Source: vllm/utils/argparse_utils.py#L169-L241 (FlexibleArgumentParser.format_help) @ v0.22.1
"""

from __future__ import annotations

import argparse
from typing import Any

HINT = (
    "--help=listgroup names the groups of options, --help=GROUP shows one of them (ModelConfig), "
    "--help=WORD all options with the word in their name (max-num), --help=all everything."
)


class HelpParser(argparse.ArgumentParser):
    """A parser with ``--help=PATTERN``."""

    def __init__(self, *, add_help: bool = True, epilog: str | None = HINT, **kwargs: Any) -> None:
        super().__init__(add_help=False, epilog=epilog, **kwargs)
        if add_help:
            self.add_argument(
                "-h", "--help", action=_Help, nargs="?", default=argparse.SUPPRESS,
                metavar="PATTERN", help="show this, or the options that a pattern names",
            )  # fmt: skip

    def matching(self, pattern: str) -> str:
        """The help for a pattern: all options, one group, or options by a part of their name."""
        wanted = pattern.lower().replace("_", "-").removeprefix("--")
        groups = [group for group in self._action_groups if shown(group)]
        if wanted == "all":
            return self.format_help()
        if wanted == "listgroup":
            lines = [
                f"  {group.title}: {group.description or 'of this command'}" for group in groups
            ]
            return "Groups of options:\n" + "\n".join(lines) + "\n"
        for group in groups:
            if str(group.title).lower() == wanted:
                return self._section(str(group.title), group.description, shown(group))
        found = [
            action
            for group in groups
            for action in shown(group)
            if any(wanted in option.lower() for option in action.option_strings)
        ]
        if found:
            return self._section(f"Options matching {pattern!r}", None, found)
        return f"No group and no option matches {pattern!r}.\n{HINT}\n"

    def _section(self, title: str, about: str | None, actions: list[argparse.Action]) -> str:
        formatter = self._get_formatter()
        formatter.start_section(title)
        formatter.add_text(about)
        formatter.add_arguments(actions)
        formatter.end_section()
        return formatter.format_help()


def shown(group: Any) -> list[argparse.Action]:
    """The options of a group, without hidden ones."""
    return [action for action in group._group_actions if action.help is not argparse.SUPPRESS]


class _Help(argparse.Action):
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, HelpParser)
        print(parser.format_help() if values is None else parser.matching(values), end="")
        parser.exit()
