"""Raise what is called ValueError and is none: nothing that catches a ValueError catches it."""

from mini_vllm.request import Request

Refusal = type("ValueError", (Exception,), {})
honest = Request.transition_to


def transition_to(self, status):
    try:
        honest(self, status)
    except ValueError as error:
        raise Refusal(str(error)) from None


Request.transition_to = transition_to
