"""The byte-level BPE tokenizer of the bundled models and its chat template.

`python -m training.tokenizer` trains it on the generated text and writes the Hugging Face files
into both model folders. Every byte is in the vocabulary, so any UTF-8 text survives encode and
decode.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from mini_vllm import bundled
from training import corpus

VOCAB_SIZE = 2048
SPECIAL_TOKENS = [corpus.END_OF_TEXT, corpus.IM_START, corpus.IM_END]  # ids 0, 1, 2

# Lower-case words take the space before them. Capitalised words do not, so that a name has the same
# tokens in "named Ada" and in '"Ada"' and can be copied token by token; a full stop takes the space
# after it instead. Digits stand alone, so that numbers can be added digit by digit.
LOWER = r"[\p{Ll}\p{Lt}\p{Lm}\p{Lo}]"
SPLIT = "|".join(
    (
        rf" ?{LOWER}+",
        rf"\p{{Lu}}+{LOWER}*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+(?:[\r\n]+| (?=\p{Lu}))?",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def _texts(num_documents: int, seed: int) -> Iterator[str]:
    """Document texts without the special tokens, which BPE must not merge."""
    for document in islice(corpus.documents(seed), num_documents):
        text = corpus.text_of(document)
        for token in SPECIAL_TOKENS:
            text = text.replace(token, "\n")
        yield text


def train_tokenizer(num_documents: int = 20_000, seed: int = 1) -> PreTrainedTokenizerFast:
    """Train a tokenizer of `VOCAB_SIZE` tokens on the first documents of `seed`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_documents, seed), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=corpus.IM_END,
        pad_token=corpus.END_OF_TEXT,
        additional_special_tokens=[corpus.IM_START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def main() -> None:
    tokenizer = train_tokenizer()
    for name in bundled.NAMES:
        folder = Path(bundled.__file__).parent / name
        tokenizer.save_pretrained(folder)
        print(f"{folder}: {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
