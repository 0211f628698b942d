"""Outputs of several steps are joined: what comes with one of them survives."""

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput


def output(token, text="x", **more):
    part = CompletionOutput(
        index=0, text=text, token_ids=[token], cumulative_logprob=None, logprobs=None, **more
    )
    ended = "finish_reason" in more
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1],
        prompt_logprobs=None,
        outputs=[part],
        finished=ended,
    )


def joined(*outputs, aggregate=True):
    first, *others = outputs
    for other in others:
        first.add(other, aggregate=aggregate)
    return first.outputs[0]


def experts(rows=2):
    return np.ones((rows, 1, 1), dtype=np.uint8)


def the_bug(draw):
    steps, rows = draw.randint(1, 4), draw.randint(1, 9)
    found = joined(
        *(output(5 + n) for n in range(steps)),
        output(99, finish_reason="stop", routed_experts=experts(rows)),
    )
    assert found.routed_experts is not None, (
        "routed_experts is gone as soon as the client is a step late"
    )
    assert found.routed_experts.shape == (rows, 1, 1)


def neighbour_the_other_fields():
    found = joined(output(5), output(6, finish_reason="stop"))
    assert (found.token_ids, found.text, found.finish_reason, found.routed_experts) == (
        [5, 6],
        "xx",
        "stop",
        None,
    )


def neighbour_what_came_first_stays():
    found = joined(output(5, routed_experts=experts()), output(6))
    assert found.routed_experts is not None, "an output without experts takes none away"


def neighbour_without_aggregation():
    found = joined(output(5), output(6, routed_experts=experts()), aggregate=False)
    assert found.token_ids == [6] and found.routed_experts is not None


def the_sibling(draw):
    """Blocks that any worker could not load are in the joined output of all workers."""
    bad = [set(draw.sample(range(50), draw.randint(1, 3))) for _ in range(3)] + [set()]
    outputs = [
        ModelRunnerOutput(
            req_ids=[],
            req_id_to_index={},
            kv_connector_output=KVConnectorOutput(invalid_block_ids=set(ids)),
        )
        for ids in bad
    ]
    found = KVOutputAggregator(4).aggregate(outputs).kv_connector_output.invalid_block_ids
    assert found == set.union(*bad), f"{sorted(found)} of {sorted(set.union(*bad))}"
