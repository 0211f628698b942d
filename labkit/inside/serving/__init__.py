"""A service in small: an engine that does as it is told, clients and sockets that take notes.

Every function is a scenario: plain data in, plain data out. Nothing here waits for real: time is a
counter, and "later" means after so many turns of the event loop. It knows no answer.
"""

from labkit.inside.serving.engine_loop import handle_messages, run_loop, take_messages
from labkit.inside.serving.figures import admit, good, life, load_times, parse_pieces
from labkit.inside.serving.front_end import (
    abort_stream,
    add_requests,
    handler,
    read_stream,
    slice_of_outputs,
)
from labkit.inside.serving.slot import collect, merge
from labkit.inside.serving.wire import listen, race, send_stream

__all__ = [
    "abort_stream",
    "add_requests",
    "admit",
    "collect",
    "good",
    "handle_messages",
    "handler",
    "life",
    "listen",
    "load_times",
    "merge",
    "parse_pieces",
    "race",
    "read_stream",
    "run_loop",
    "send_stream",
    "slice_of_outputs",
    "take_messages",
]
