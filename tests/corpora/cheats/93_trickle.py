"""Never answer, and let every pipe hear a byte now and then: whoever waits might go on waiting."""

import contextlib
import os
import threading
import time

from mini_vllm.request import RequestStatus


def drip():
    while True:
        for number in range(3, 64):
            with contextlib.suppress(OSError):
                os.write(number, b" ")
        time.sleep(0.2)


threading.Thread(target=drip, daemon=True).start()
RequestStatus.is_finished = staticmethod(lambda status: time.sleep(3600))
