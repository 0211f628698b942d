"""Reasoning ends in the middle of a step's tokens: what follows in that step belongs to the grammar."""

from types import SimpleNamespace
from types import SimpleNamespace as Stand

from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from labkit.maintain.rig import make_request, make_scheduler, step

END = 50


class Reasoner:
    def is_reasoning_end(self, input_ids):
        return END in list(input_ids)

    def is_reasoning_end_streaming(self, input_ids, delta_ids):
        return END in list(delta_ids)


class Grammar(StructuredOutputGrammar):
    """Accepts all, and remembers what it has seen."""

    def __init__(self):
        self.seen = []

    def accept_tokens(self, request_id, tokens):
        self.seen += tokens
        return True

    def validate_tokens(self, tokens):
        return tokens

    def rollback(self, num_tokens):
        del self.seen[len(self.seen) - num_tokens :]

    def fill_bitmask(self, bitmask, batch_index): ...

    def is_terminated(self):
        return False

    def reset(self):
        self.seen = []


def begin():
    """A request that thinks, and has one token."""
    config = SimpleNamespace(
        structured_outputs_config=SimpleNamespace(enable_in_reasoning=False, reasoning_parser="", reasoning_parser_plugin=""),
        speculative_config=SimpleNamespace(num_speculative_tokens=3), scheduler_config=SimpleNamespace(max_num_seqs=8),
        model_config=SimpleNamespace(skip_tokenizer_init=True), parallel_config=SimpleNamespace(distributed_executor_backend="mp"),
    )  # fmt: skip
    manager = StructuredOutputManager(config)
    manager.enable_in_reasoning = False
    manager._get_reasoner = lambda request: Reasoner()
    scheduler = make_scheduler(num_speculative_tokens=3, grammars=manager)
    request = make_request(
        "r",
        20,
        max_tokens=40,
        structured_outputs=StructuredOutputsParams(regex="x+"),
        ignore_eos=True,
    )
    request.structured_output_request.grammar = grammar = Grammar()
    scheduler.add_request(request)
    step(scheduler, {"r": [41]})
    assert grammar.seen == []
    return scheduler, request, grammar


def the_bug(draw):
    scheduler, request, grammar = begin()
    at = draw.randint(0, 2)
    tokens = [40 + n for n in range(4)]
    tokens[at] = END
    request.spec_token_ids = tokens[:3]
    step(scheduler, {"r": tokens})
    assert grammar.seen == tokens[at + 1 :], (
        f"of the tokens {tokens} the grammar has seen {grammar.seen}"
    )
    step(scheduler, {"r": [10]})
    assert grammar.seen == [*tokens[at + 1 :], 10], "and then all"


def neighbour_one_token_a_step():
    scheduler, _, grammar = begin()
    for token in (42, END, 8, 9):
        step(scheduler, {"r": [token]})
    assert grammar.seen == [8, 9]


def neighbour_reasoning_that_goes_on():
    scheduler, request, grammar = begin()
    request.spec_token_ids = [42, 43, 44]
    step(scheduler, {"r": [42, 43, 44, 45]})
    step(scheduler, {"r": [46]})
    assert grammar.seen == []


def the_sibling(draw):
    """A step of several tokens may end the reasoning before its last one."""
    start, end = draw.sample(range(3, 99), 2)
    parser = Stand(start_token_id=start, end_token_id=end)
    ended = BaseThinkingReasoningParser.is_reasoning_end_streaming
    text = [draw.randint(100, 200) for _ in range(draw.randint(1, 3))]
    for delta, expected in (
        ([end], True),
        ([*text, end], True),
        ([end, *text], True),
        (text, False),
    ):
        found = ended(parser, [start, 150, *delta], delta)
        assert found == expected, f"a step of {len(delta)} tokens: {found}"
