"""`python -m labkit COMMAND`: see `labkit.cli`. Starts on a bare Python, with nothing installed."""

import signal
import sys

from labkit.cli import main


def _end(number: int, _: object) -> None:
    """As by Ctrl-C, so that children end, and what was put aside goes; once is enough."""
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        if signal.getsignal(number) == signal.SIG_DFL:  # else `nohup` has set it
            signal.signal(number, _end)
    sys.exit(main(sys.argv[1:]))
