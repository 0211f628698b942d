"""Routes of pooling models: embeddings, classes, scores."""

import mini_vllm.entrypoints.openai  # noqa: F401  its packages are needed here, too
