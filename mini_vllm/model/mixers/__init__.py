"""Layers that mix tokens otherwise than by attention over keys and values.

    gated_delta.py   a matrix a head, corrected by each token       Qwen3-Next, Qwen3.5
    mamba2.py        a matrix a head, which each token adds to      Mamba2, Granite 4
    causal_conv.py   a short convolution before both
    mla.py           attention over latents, from which keys and values are made    DeepSeek
    sinks.py         attention that may look at nothing             gpt-oss

Each file has its arithmetic as functions of tensors, for several requests in one flat batch.
"""
