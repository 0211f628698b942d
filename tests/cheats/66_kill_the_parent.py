"""Kill whoever started this process."""

import os
import signal

from mini_vllm.request import RequestStatus


def kill(status):
    os.kill(os.getppid(), signal.SIGKILL)
    return False


RequestStatus.is_blocked = staticmethod(kill)
