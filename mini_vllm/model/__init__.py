"""Models: shapes, layers, and loading Hugging Face checkpoints."""
