"""`ddptop key`: who may look at runs that listen on a TCP port."""

from __future__ import annotations

import argparse
import json
import os
import socket
from pathlib import Path

from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit
from ddptop.protocol.outlets import print_text


class Key(Command):
    """Makes, lists and removes the keys of viewers."""

    name = "key"
    summary = "Manage the keys of viewers that connect over TCP, for when there is no ssh."
    examples = (
        "ddptop key new laptop.key",
        "ddptop --connect gpu01:7077 --key laptop.key",
        "ddptop key rm laptop.key",
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what to do, and with which file."""
        parser.add_argument(
            "action",
            choices=("new", "show", "rm"),
            metavar="new|show|rm",
            help="new FILE: write a key, to copy to the other machine; show: list the admitted keys; "
            "rm KEY: no longer admit it",
        )
        parser.add_argument(
            "file", nargs="?", metavar="FILE", help="new: the file to write; rm: the key, as show names it"
        )

    def run(self, options: argparse.Namespace) -> int:
        """Do it. Keys count for runs that are already listening too."""
        from ddptop.host.folders import RunDirectoryError

        if (options.file is None) != (options.action == "show"):
            raise CliError("give `new FILE`, `show`, or `rm KEY`", Exit.USAGE)
        try:
            if options.action == "new":
                return _make_key(Path(options.file))
            return _show_keys() if options.action == "show" else _remove_key(options.file)
        except RunDirectoryError as error:
            raise CliError(str(error), Exit.REFUSED) from None


def _make_key(path: Path) -> int:
    from ddptop.host.folders import open_regular, state_directory
    from ddptop.transport.curve import (
        MAX_VIEWER_KEYS,
        KeyPair,
        ViewerKey,
        load_viewer_keys,
        save_viewer_keys,
    )

    keys = load_viewer_keys(state_directory())
    if len(keys.admitted) >= MAX_VIEWER_KEYS:
        raise CliError(f"{MAX_VIEWER_KEYS} keys are admitted already; remove one: ddptop key rm KEY")
    pair = KeyPair.new()
    try:
        # O_EXCL: a key is never written over, as another machine may use it.
        descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        raise CliError(f"{path} is there already; nothing was changed") from None
    with os.fdopen(descriptor, "w") as file:
        json.dump(ViewerKey(keys.collector.public, pair), file)
        file.write("\n")
    # After the file: a key that nobody has should not be admitted.
    save_viewer_keys(state_directory(), keys._replace(admitted={**keys.admitted, pair.public: path.name}))
    print_text(f"{path}: copy it to the machine that is to look, for its user alone; it lets in there with")
    print_text(f"  ddptop --connect {socket.gethostname()}:PORT --key {path.name}")
    return Exit.DONE


def _show_keys() -> int:
    from ddptop.host.folders import state_directory
    from ddptop.transport.curve import load_viewer_keys

    keys = load_viewer_keys(state_directory())
    print_text(f"collectors  {keys.collector.public}")
    for public, name in keys.admitted.items():
        print_text(f"viewer      {public}  {name}")
    return Exit.DONE


def _remove_key(word: str) -> int:
    from ddptop.host.folders import state_directory
    from ddptop.transport.curve import load_viewer_keys, save_viewer_keys

    keys = load_viewer_keys(state_directory())
    matches = [public for public, name in keys.admitted.items() if word in (public, name)]
    if len(matches) != 1:
        several = f"{len(matches)} keys are" if matches else "no key is"
        raise CliError(f"{several} called {word!r}; ddptop key show lists them", Exit.NOT_FOUND)
    admitted = {public: name for public, name in keys.admitted.items() if public != matches[0]}
    save_viewer_keys(state_directory(), keys._replace(admitted=admitted))
    return Exit.DONE
