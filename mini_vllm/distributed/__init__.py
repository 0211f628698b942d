"""More than one device: who is who, what is exchanged, and which part of the model is where."""
