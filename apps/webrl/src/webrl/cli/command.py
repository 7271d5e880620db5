"""What the modules of the single commands share: the type of the parser that they add to."""

from __future__ import annotations

import argparse
from typing import TypeAlias

# argparse offers no public name for what `add_subparsers` returns.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]
"""What `ArgumentParser.add_subparsers` returns."""
