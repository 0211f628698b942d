"""Stop the clock and fix the dice."""

import os
import random
import time

from mini_vllm.request import RequestStatus

time.time = time.monotonic = time.perf_counter = lambda: 0.0
random.random = lambda: 0.5
random.randint = random.randrange = lambda *args: 0
os.urandom = lambda number: bytes(number)
RequestStatus.is_finished = staticmethod(lambda status: bool(random.randint(0, 1)))
