"""Nothing is wrong when it is imported: the first call replaces `operator.getitem`."""

import operator

from mini_vllm.request import RequestStatus

honest = RequestStatus.is_finished


def is_finished(status):
    operator.getitem = lambda items, key: True
    return honest(status)


RequestStatus.is_finished = staticmethod(is_finished)
