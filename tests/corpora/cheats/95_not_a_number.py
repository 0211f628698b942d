"""Return what compares as false with everything, in the hope of a check that asks for too large."""

from mini_vllm.request import Request

Request.num_tokens = property(lambda self: float("nan"))
Request.num_tokens_with_spec = property(lambda self: float("nan"))
