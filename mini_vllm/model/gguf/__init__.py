"""Models in one file, as llama.cpp writes them: shape, weights, tokenizer and chat template.

    config.py      metadata -> the entries of a `config.json`
    tensors.py     tensors under the names of a Hugging Face checkpoint, as floats or as blocks
    tokenizer.py   metadata -> a tokenizer of the `transformers` kind

`mini_vllm.gguf` reads what a file says about itself. The other loaders read such a file as if it
were a folder; each asks `is_gguf` first.
"""
