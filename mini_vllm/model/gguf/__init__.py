"""Models in one file, as llama.cpp writes them: shape, weights, tokenizer and chat template.

    config.py      metadata -> the entries of a `config.json`
    tensors.py     tensors under the names of a Hugging Face checkpoint, as floats or as blocks
    tokenizer.py   metadata -> a tokenizer of the `transformers` kind

`mini_vllm.gguf` reads a file's metadata and its list of tensors. The other loaders treat such a
file like a folder; each calls `is_gguf` first.
"""
