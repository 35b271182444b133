"""`ddptop completion bash`: a script that lets a shell complete commands, options, runs and recordings."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from ddptop.cli.commands.base import VALUE_OPTIONS, Command
from ddptop.cli.commands.export import FORMATS
from ddptop.cli.commands.look import Look
from ddptop.cli.errors import CliError, Exit
from ddptop.cli.settings import OWN_THEMES
from ddptop.protocol.outlets import print_text


class Completion(Command):
    """Prints a script for a shell."""

    name = "completion"
    summary = "Print a script that lets bash, zsh or fish complete ddptop."
    examples = ('eval "$(ddptop completion bash)"',)

    def __init__(self, others: Sequence[Command]) -> None:
        self.others = others

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The shell. `names` is what the scripts ask for."""
        parser.add_argument("shell", choices=("bash", "zsh", "fish", "names"), metavar="bash|zsh|fish")

    def run(self, options: argparse.Namespace) -> int:
        """Print the script, or the names of the runs that there are."""
        if options.shell == "names":
            return _print_names()
        commands = (*self.others, self)
        print_text(completion_script(options.shell, Look(commands), commands), end="")
        return Exit.DONE


def _print_names() -> int:
    """Print the names of live runs and recordings, one a line; nothing if they cannot be looked up."""
    from ddptop.cli.find import find_live, find_recorded

    try:
        running = find_live()
        kept = find_recorded(running)
    except CliError:
        return Exit.DONE
    for name in dict.fromkeys([*(run.name for run in running), *(item.name for item in kept)]):
        if name == shlex.quote(name) and name.isascii():  # others would need quoting in every shell's way
            print_text(name)
    return Exit.DONE


NAMES = "ddptop completion names 2>/dev/null"
"""Asked whenever a user completes, so that a run started a minute ago is offered."""

_BASH = """\
# ddptop completion for bash: put `eval "$(ddptop completion bash)"` into ~/.bashrc
_ddptop() {
  local cur="${COMP_WORDS[COMP_CWORD]}" word command="" words=""
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$word" in @COMMANDS_OR@) command="$word"; break ;; esac
  done
  case "$command" in
@CASES@
  esac
  case "${COMP_WORDS[COMP_CWORD-1]}" in
@VALUES@
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
  case "$command" in replay|report|export|rm)
    [[ "$cur" == -* ]] || COMPREPLY+=($(compgen -f -- "$cur")) ;;
  esac
}
complete -o bashdefault -F _ddptop ddptop
"""

_ZSH = """\
#compdef ddptop
# ddptop completion for zsh: put `eval "$(ddptop completion zsh)"` into ~/.zshrc, after compinit
_ddptop() {
  local -a all
  local word command=""
  for word in ${words[2,CURRENT-1]}; do
    case "$word" in (@COMMANDS_OR@) command="$word"; break ;; esac
  done
  case "$command" in
@CASES@
  esac
  case "${words[CURRENT-1]}" in
@VALUES@
  esac
  compadd -- $all
  case "$command" in (replay|report|export|rm) _files ;; esac
}
compdef _ddptop ddptop
"""

_FISH_HEAD = """\
# ddptop completion for fish: put `ddptop completion fish | source` into ~/.config/fish/config.fish
complete -c ddptop -f
"""


def option_values(option: str) -> tuple[str, ...] | None:
    """The values that an option may have; None: it takes none; empty: any value will do."""
    from ddptop.tui.all_views import VIEWS

    choices = {"--view": VIEWS.numbered_names, "--theme": OWN_THEMES, "--to": FORMATS}
    return choices.get(option, () if option in VALUE_OPTIONS else None)


def completion_script(shell: str, look: Command, commands: Sequence[Command]) -> str:
    """The script for `bash`, `zsh` or `fish`. Raises KeyError for another shell."""
    return {"bash": _bash_script, "zsh": _zsh_script, "fish": _fish_script}[shell](look, commands)


def long_options(command: Command) -> list[tuple[str, str]]:
    """Long options of a command, each with its help."""
    # Private, but argparse has had it since Python 2.7 and offers no other way to ask.
    actions: list[argparse.Action] = command.parser()._actions
    return [
        (option, (action.help or "").partition(";")[0])
        for action in actions
        for option in action.option_strings
        if option.startswith("--")
    ]


def _bash_script(look: Command, commands: Sequence[Command]) -> str:
    cases = [_case_of(f"    {c.name})", c, 'words="{}"') for c in commands]
    first = " ".join([*(c.name for c in commands), *_option_names(look)])
    cases.append(f'    *) words="{first} $({NAMES})" ;;')
    return _fill_template(_BASH, commands, cases, 'words="{}"')


def _zsh_script(look: Command, commands: Sequence[Command]) -> str:
    cases = [_case_of(f"    ({c.name})", c, "all=({})") for c in commands]
    first = " ".join([*(c.name for c in commands), *_option_names(look)])
    cases.append(f'    (*) all=({first} ${{(f)"$({NAMES})"}}) ;;')
    return _fill_template(_ZSH, commands, cases, "all=({})")


def _case_of(label: str, command: Command, words: str) -> str:
    choices = _option_names(command)
    choices += [f"$({NAMES})"] if command.name in ("report", "export") else []
    choices += {"completion": ["bash", "zsh", "fish"], "key": ["new", "show", "rm"]}.get(command.name, [])
    return f"{label} {words.format(' '.join(choices))} ;;"


def _fill_template(text: str, commands: Sequence[Command], cases: Sequence[str], words: str) -> str:
    named = "|".join(command.name for command in commands)
    after = [
        f"    ({option}) {words.format(' '.join(option_values(option) or ()))} ;;"
        for option in sorted(VALUE_OPTIONS | {"--to"})
    ]
    filled = {"@COMMANDS_OR@": named, "@CASES@": "\n".join(cases), "@VALUES@": "\n".join(after)}
    for mark, lines in filled.items():
        text = text.replace(mark, lines)
    return text


def _fish_script(look: Command, commands: Sequence[Command]) -> str:
    named = " ".join(command.name for command in commands)
    none = f"not __fish_seen_subcommand_from {named}"
    lines = [f"complete -c ddptop -n '{none}' -a '({NAMES})' -d run"]
    for command in commands:
        lines.append(
            f"complete -c ddptop -n '{none}' -a {command.name} -d {_quote_for_fish(command.summary)}"
        )
    lines += [_fish_option(none, *option) for option in long_options(look)]
    for command in commands:
        inside = f"__fish_seen_subcommand_from {command.name}"
        lines += [_fish_option(inside, *option) for option in long_options(command)]
    lines.append("complete -c ddptop -n '__fish_seen_subcommand_from replay report export' -F")
    lines.append(f"complete -c ddptop -n '__fish_seen_subcommand_from report export' -a '({NAMES})'")
    lines.append("complete -c ddptop -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'")
    lines.append("complete -c ddptop -n '__fish_seen_subcommand_from key' -a 'new show rm'")
    return _FISH_HEAD + "\n".join(lines) + "\n"


def _fish_option(when: str, option: str, words: str) -> str:
    after = option_values(option)
    value = "" if after is None else f" -x -a {_quote_for_fish(' '.join(after))}"
    return f"complete -c ddptop -n '{when}' -l {option.removeprefix('--')}{value} -d {_quote_for_fish(words)}"


def _quote_for_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _option_names(command: Command) -> list[str]:
    return [option for option, _ in long_options(command)]
