"""The worker: keeps the batch on the device and runs the model over it."""
