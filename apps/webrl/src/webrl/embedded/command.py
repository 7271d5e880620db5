"""The command line of a server that speaks SGLang's protocol, made from its configuration."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import MISSING, fields
from typing import Any

from webrl.embedded.config import TOKEN_VARIABLE, EmbeddedServerConfig
from webrl.lifeline import end_group_with
from webrl.process_log import configure_log

Serve = Callable[[Any, socket.socket], Coroutine[Any, Any, None]]
"""Answers requests on a listening socket, under a configuration, until it is told to end."""

HELP = {
    "model_path": "local folder of the checkpoint",
    "host": f"address to listen on; not of loopback only with a token in {TOKEN_VARIABLE}",
    "port": "port to listen on; 0 for a free one",
    "device": "torch device",
    "dtype": "float32, bfloat16 or float16",
    "tp_size": "members of a broadcast group that it stands for",
    "num_threads": "torch threads",
    "weight_version": "version label until the first update",
    "max_running_requests": "requests in one running batch",
    "max_prefill_tokens": "padded tokens of one prefill",
    "context_length": "most tokens of prompt and answer; default: the model's own",
    "prompt_cache_bytes": "bytes of prefilled prompts kept for sharing",
    "image_cache_bytes": "bytes of image features kept until the next update",
    "max_body_bytes": "largest request body",
    "group_timeout_s": "timeout of broadcast groups, seconds",
    "seed": "seed of the draws",
}
"""What the help says about each setting."""


def run_server(
    arguments: list[str] | None,
    *,
    prog: str,
    config_type: type[EmbeddedServerConfig],
    help_texts: Mapping[str, str],
    load: Callable[[], Serve],
) -> int:
    """Run a server until it is told to end; return the exit code.

    Args:
        arguments: Of the command line; those of this process when None.
        prog: What the help calls the command.
        config_type: The server's configuration: each field is a flag.
        help_texts: What the help says about each field.
        load: Imports and returns the server itself, once settings and port are found right: both are
            told before seconds of imports.
    """
    options = vars(_parser(prog, config_type, help_texts).parse_args(arguments))
    if options.pop("end_with_stdin"):
        end_group_with(starter=True)
    level = str(options.pop("log_level")).upper()
    configure_log(logging.StreamHandler(), level)
    logger = logging.getLogger("webrl.embedded")
    try:
        token = os.environ.get(TOKEN_VARIABLE) or None
        config = config_type(**options, token=token)
    except ValueError as error:
        logger.error("%s", error)
        return 2
    # Torch reads this when it is imported, which `load` does.
    os.environ.setdefault("OMP_NUM_THREADS", str(config.num_threads))
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        listener = socket.create_server((config.host, config.port), family=family, backlog=1024)
    except OSError as error:
        place = f"port {config.port} of {config.host}"
        logger.error("%s must be free, got: %s", place, error.strerror)
        return 2
    asyncio.run(load()(config, listener))
    logging.shutdown()
    # Worker threads may hang in a broadcast whose sender is gone; they must not hold the process.
    os._exit(0)


def _parser(
    prog: str, config_type: type[EmbeddedServerConfig], help_texts: Mapping[str, str]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    for field in fields(config_type):
        if field.name == "token":
            continue
        flag = "--" + field.name.replace("_", "-")
        help_text = help_texts[field.name]
        if field.default is MISSING:
            parser.add_argument(flag, required=True, help=help_text)
        elif field.default is None:
            parser.add_argument(flag, type=int, default=None, help=help_text)
        else:
            parser.add_argument(
                flag, type=type(field.default), default=field.default, help=help_text
            )
    parser.add_argument(
        "--end-with-stdin",
        action="store_true",
        help="end when standard input closes: a pipe whose other end the starter holds",
    )
    parser.add_argument("--log-level", default="info", help="level of the log on standard error")
    return parser
