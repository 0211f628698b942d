"""Prompts in, outputs out: the engine core, and the front ends around it."""
