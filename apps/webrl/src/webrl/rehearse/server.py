"""`python -m webrl.rehearse.server`: an inference server without a model.

HTTP side, scheduling, weight groups, updates and checksums are the embedded server's. In place of the
model's forwards it waits for as long as it is told to and says an action; weights are held by name,
checked and updated like any, and never computed with.
"""

from __future__ import annotations

import sys

from webrl.embedded.command import HELP, Serve, run_server
from webrl.rehearse.fork_server import fork_instead
from webrl.rehearse.server_config import RehearsedServerConfig

_HELP = {
    **HELP,
    "token_s": "seconds of one decode step",
    "prefill_s": "seconds of the prefill of one prompt",
    "saturation": "running requests above which a decode step takes longer",
    "thought_tokens": "mean number of tokens before the action of an answer",
    "answer_share": "share of the actions that end their episode",
}


def main(arguments: list[str] | None = None) -> int:
    """Run a server until it is told to end; return the exit code."""
    fork_instead("webrl.rehearse.server", sys.argv[1:] if arguments is None else arguments)
    return run_server(
        arguments,
        prog="python -m webrl.rehearse.server",
        config_type=RehearsedServerConfig,
        help_texts=_HELP,
        load=_load,
    )


def _load() -> Serve:
    from webrl.rehearse.scripted import serve_script  # noqa: PLC0415

    return serve_script


if __name__ == "__main__":
    sys.exit(main())
