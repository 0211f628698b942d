"""What a worker does in a step: keeps the batch on the device and runs the model over it."""
