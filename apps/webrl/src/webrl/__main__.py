"""`python -m webrl`."""

import sys

from webrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
