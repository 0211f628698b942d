"""Text generator, training and evaluation of the models that ship with mini_vllm."""
