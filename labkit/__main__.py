"""`python -m labkit COMMAND`: see `labkit.cli`. Starts on a bare Python, with nothing installed."""

import sys
from types import TracebackType


def _say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Ctrl-C while the command is still being imported is no fault to show a traceback of."""
    if issubclass(kind, KeyboardInterrupt):
        print("\nInterrupted.", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)


def main() -> int:
    """What `python -m labkit` does, and the script `labkit` of a wheel. Returns the exit code."""
    sys.excepthook = _say
    import signal

    from labkit import cli

    def end(number: int, _: object) -> None:
        """As by Ctrl-C, so that children end, and what was put aside goes; once is enough."""
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        if signal.getsignal(number) == signal.SIG_DFL:  # else `nohup` has set it
            signal.signal(number, end)
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
