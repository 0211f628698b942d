"""Two small tasks for lm-eval, and the program that runs them on this engine: docs/lm-eval.md."""
