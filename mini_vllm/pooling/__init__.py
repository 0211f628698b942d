"""Pooling models: embeddings, classes and scores from the hidden states of a prompt."""
