"""The course's tooling: set-up, skeletons, runner, tracing, citations and the command line."""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")  # screens and notebooks show results only
