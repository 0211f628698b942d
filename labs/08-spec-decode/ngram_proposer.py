"""Prompt lookup: what followed the last time that the text ended like this?

    tokens   the red fox ran . the red fox | ?
                 ~~~ ~~~                      the last 2 tokens stood here before ...
                         ~~~ ~ ~~~            ... and these followed: the drafts

No model is asked, so a wrong guess costs only its verification.

Source: vllm/v1/spec_decode/ngram_proposer.py#L11-L196 (NgramProposer) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mini_vllm.spec_decode.proposer import Proposer, ProposerInput


def find_longest_matched_ngram_and_propose_tokens(
    origin_tokens: NDArray[np.int64] | Sequence[int],
    min_ngram: int,
    max_ngram: int,
    max_model_len: int,
    k: int,
) -> NDArray[np.int64]:
    """The tokens that followed an earlier occurrence of the text's own end.

    Of all n-grams at the end of ``origin_tokens`` with ``min_ngram <= n <= max_ngram`` take the
    longest that also occurs earlier, and of its occurrences the first. It may overlap the end,
    but it is not the end itself::

        1 2 3 1 2 3 1 2      n = 3, "3 1 2": first at index 2; "3 1 2" follows

    Args:
        origin_tokens: ``[N]``, prompt and output, an array or a list; may be empty.
        max_model_len: no draft lies at or beyond this position.
        k: at most so many drafts.

    Returns:
        ``[at most k]`` tokens, fewer where the text ends; an empty array without a match.

    Ends of n-grams that match are those of (n-1)-grams that match, if the token before them does
    too. In whole arrays that is O(N) for each length tried; a slower way is right too.

    Source: vllm/v1/spec_decode/ngram_proposer.py#L199-L285
    (_find_longest_matched_ngram_and_propose_tokens) @ v0.22.1, which compiles one pass over the
    reversed text with numba.
    """
    # TODO 08.1
    raise NotImplementedError(
        "TODO 08.1: write find_longest_matched_ngram_and_propose_tokens in labs/08-spec-decode/ngram_proposer.py"
        " (phase 08, 02-mini-build.md#task-1)"
    )


class NgramProposer(Proposer):
    """Drafts from the request's own text.

    Args:
        min_ngram, max_ngram: lengths of the end of the text that is looked for.
        num_speculative_tokens: most drafts a request gets.
        max_model_len: most tokens a request may reach.
    """

    def __init__(
        self, min_ngram: int, max_ngram: int, num_speculative_tokens: int, max_model_len: int
    ) -> None:
        self.min_ngram, self.max_ngram = min_ngram, max_ngram
        self.k = num_speculative_tokens
        self.max_model_len = max_model_len

    def propose(self, step: ProposerInput) -> dict[str, list[int]]:
        """Drafts of every request that got a token and whose end was found earlier in its text.

        Its text are the first ``num_tokens`` of its row in ``step.batch.token_ids``: what stands
        behind them is left from rejected drafts. It is read anew in every step: an id may return
        with another text. Drafts travel to other processes, so they are numbers of Python's own,
        not numpy's.

        Source: vllm/v1/spec_decode/ngram_proposer.py#L131-L162 (NgramProposer.propose) @ v0.22.1
        """
        # TODO 08.1
        raise NotImplementedError(
            "TODO 08.1: write NgramProposer.propose in labs/08-spec-decode/ngram_proposer.py"
            " (phase 08, 02-mini-build.md#task-1)"
        )
