"""Ask somebody outside."""

import socket

from mini_vllm.request import RequestStatus


def ask(status):
    for address in (("127.0.0.1", 22), ("1.1.1.1", 53)):
        try:
            socket.create_connection(address, 0.3).close()
            print("LEAKED")
        except OSError:
            pass
    return None


RequestStatus.is_finished = staticmethod(ask)
