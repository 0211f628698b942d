"""Call itself until the stack of the process is used up, which no exception tells."""

import sys

from mini_vllm.request import RequestStatus

sys.setrecursionlimit(2**31 - 1)


def deeper(status):
    return sorted([status, status], key=deeper)


RequestStatus.is_finished = staticmethod(deeper)
