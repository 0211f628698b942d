"""Pooling models: what is made of the hidden states of a prompt instead of a next token."""
