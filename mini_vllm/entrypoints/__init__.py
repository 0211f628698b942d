"""Ways to use the engine from outside Python."""
