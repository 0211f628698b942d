"""A delta without new tokens carries no logprobs."""

from types import SimpleNamespace

import numpy as np
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor
from vllm.v1.outputs import LogprobsLists


def begin(kind=RequestOutputKind.DELTA):
    params = SamplingParams(max_tokens=64, logprobs=0, detokenize=False, output_kind=kind)
    processor = OutputProcessor(None, log_stats=False)
    request = EngineCoreRequest(
        request_id="r-0", external_req_id="r", prompt_token_ids=[1, 2], mm_features=None, sampling_params=params,
        pooling_params=None, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
    )  # fmt: skip
    processor.add_request(request, None)

    def take(tokens, **more):
        rows, lists = len(tokens), None
        if tokens:
            shape = np.array(tokens).reshape(rows, 1)
            lists = LogprobsLists(
                shape, np.full((rows, 1), -0.5, np.float32), np.ones(rows, np.int32), None
            )
        output = EngineCoreOutput(
            request_id="r-0", new_token_ids=tokens, new_logprobs=lists, **more
        )
        return processor.process_outputs([output]).request_outputs[0].outputs[0]

    return take


def the_bug(draw):
    take = begin()
    take([draw.randint(5, 99) for _ in range(draw.randint(2, 5))])
    last = take([], finish_reason=FinishReason.ABORT)
    assert len(last.logprobs or []) == 0, f"{len(last.logprobs)} logprobs come with 0 tokens"


def neighbour_a_delta_with_tokens():
    take = begin()
    assert len(take([5, 6, 7]).logprobs) == 3
    assert [list(row) for row in take([8, 9]).logprobs] == [[8], [9]]


def neighbour_without_deltas_all_stay():
    take = begin(RequestOutputKind.CUMULATIVE)
    take([5, 6, 7])
    assert len(take([], finish_reason=FinishReason.ABORT).logprobs) == 3


def the_sibling(draw):
    """The whole text of an answer, with and without letters that are held back."""
    text = "".join(draw.choices("abcdef", k=draw.randint(3, 9)))
    held = draw.randint(1, 2)
    for finished, buffer, expected in (
        (True, 0, text),
        (True, held, text),
        (False, 0, text),
        (False, held, text[: len(text) - held]),
    ):
        state = SimpleNamespace(
            output_text=text, stop_buffer_length=buffer, _last_output_text_offset=0
        )
        found = BaseIncrementalDetokenizer.get_next_output_text(state, finished, False)
        assert found == expected, (
            f"{found!r} instead of {expected!r} ({buffer} held back, finished: {finished})"
        )
