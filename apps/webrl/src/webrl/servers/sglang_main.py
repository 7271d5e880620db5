"""`python -m webrl.servers.sglang_main ARGUMENTS`: SGLang's own server, its key taken from the environment.

As `--api-key` it could be read by everyone on the machine, and SGLang writes all its arguments into
its log. Without a key this is `python -m sglang.launch_server`. With one, SGLang 0.5.16 asks for it
on every route but `/health` and `/metrics`.

Invariant: whatever ends this process or its starter, its group ends too. SGLang's detokenizer would
outlive a kill.
"""

from __future__ import annotations

import importlib
import os
import sys

from webrl.embedded.config import TOKEN_VARIABLE
from webrl.lifeline import end_group_with


class HiddenText(str):
    """A secret among settings that SGLang writes into its log with `repr`."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return stars, however long the text is."""
        return "'***'"


def main(arguments: list[str]) -> None:
    """Serve until the process is told to end."""
    # By name: SGLang is an extra, which most environments lack.
    launcher = importlib.import_module("sglang.launch_server")
    importlib.import_module("sglang.srt.plugins").load_plugins()
    settings = launcher.prepare_server_args(arguments)
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        settings.api_key = HiddenText(token)
    try:
        launcher.run_server(settings)
    finally:
        launcher.kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    end_group_with(starter=True)
    main(sys.argv[1:])
