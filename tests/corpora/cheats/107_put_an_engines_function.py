"""Right in all of its answers, but a function of the engine outside the file is another one."""

import mini_vllm.sampling_params

mini_vllm.sampling_params.SamplingParams.__post_init__ = lambda self: None
