"""Stop the own process and every thread of it: it is no longer running, and not dead either."""

import os
import signal

from mini_vllm.request import RequestStatus

RequestStatus.is_finished = staticmethod(lambda status: os.kill(os.getpid(), signal.SIGSTOP))
