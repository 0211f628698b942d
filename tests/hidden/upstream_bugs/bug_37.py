"""min_tokens forbids the end, the grammar everything else: where nothing is left, the end is allowed."""

import torch
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate

from labkit.maintain.rig import EOS

NOTHING = float("-inf")


def processor(*structured):
    """Rows that want five tokens, and have one; some with a grammar."""
    made, rows = MinTokensLogitsProcessor(None, torch.device("cpu"), False), []
    for row, grammar in enumerate(structured):
        params = SamplingParams(
            min_tokens=5,
            stop_token_ids=[3],
            structured_outputs=StructuredOutputsParams(regex="a") if grammar else None,
        )
        params.update_from_generation_config({}, EOS)
        rows.append((row, params, [1], [9]))
    made.update_state(BatchUpdate(batch_size=len(rows), removed=[], added=rows, moved=[]))
    return made


def the_bug(draw):
    row, value = draw.randint(0, 2), draw.uniform(0.5, 3)
    logits = torch.zeros(3, 8)
    logits[row] = NOTHING
    logits[row, EOS] = value  # all that the grammar allows
    found = processor(*(n == row for n in range(3))).apply(logits)
    assert bool(torch.isfinite(found[row]).any()), "every logit is -inf"
    assert found[row].argmax().item() == EOS, f"token {found[row].argmax().item()} is drawn"
    assert int(torch.isfinite(found[row]).sum()) == 1, "what the grammar forbids stays forbidden"
    for other in {0, 1, 2} - {row}:
        assert found[other, EOS] == NOTHING and found[other, 3] == NOTHING, (
            "without a grammar min_tokens holds"
        )


def neighbour_a_grammar_that_can_go_on():
    logits = torch.full((1, 8), NOTHING)
    logits[0, EOS], logits[0, 4] = 1.0, 0.0
    found = processor(True).apply(logits)
    assert found[0, EOS] == NOTHING and found[0].argmax().item() == 4


def neighbour_without_a_grammar():
    found = processor(False).apply(torch.zeros(1, 8))
    assert torch.isneginf(found[0]).nonzero().flatten().tolist() == [EOS, 3]
