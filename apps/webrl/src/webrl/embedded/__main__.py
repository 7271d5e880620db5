"""`python -m webrl.embedded`: run one embedded server in this process."""

from __future__ import annotations

import sys

from webrl.embedded.command import HELP, Serve, run_server
from webrl.embedded.config import EmbeddedServerConfig


def main(arguments: list[str] | None = None) -> int:
    """Run a server until it is told to end; return the exit code."""
    return run_server(
        arguments,
        prog="python -m webrl.embedded",
        config_type=EmbeddedServerConfig,
        help_texts=HELP,
        load=_load,
    )


def _load() -> Serve:
    from webrl.embedded.model_server import serve_model  # noqa: PLC0415

    return serve_model


if __name__ == "__main__":
    sys.exit(main())
