"""`python -m labkit COMMAND`: see `labkit.cli`. Starts on a bare Python, with nothing installed."""

import sys

from labkit.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
