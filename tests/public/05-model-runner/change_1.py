"""Change request 1: decodes, then short prompts."""

from __future__ import annotations

from labkit.testing import expect
from mini_vllm.worker.input_batch import decodes_first


def test_change_1_by_number_of_tokens() -> None:
    """Decodes keep their order; of the others the shortest comes first."""
    expect(decodes_first([5, 1, 3, 1, 3]).tolist(), [1, 3, 2, 4, 0], at="tokens 5 1 3 1 3")


def test_change_1_decodes_alone() -> None:
    """Decodes alone stay as they are."""
    expect(decodes_first([1, 1, 1]).tolist(), [0, 1, 2], at="tokens 1 1 1")
