"""`python -m webrl`."""

from __future__ import annotations

import sys

from webrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
