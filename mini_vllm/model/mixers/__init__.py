"""Layers that mix tokens in other ways than attention over keys and values.

    gated_delta.py   a matrix per head, corrected by each token     Qwen3-Next, Qwen3.5
    mamba2.py        a matrix per head, to which each token adds    Mamba2, Granite 4
    causal_conv.py   a short convolution before both
    mla.py           attention over latents, from which keys and values are computed    DeepSeek
    sinks.py         attention with sinks                           gpt-oss

Each file has the arithmetic as functions of tensors, for several requests in one flat batch.
"""
