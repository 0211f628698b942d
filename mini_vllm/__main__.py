"""``python -m mini_vllm``: see :mod:`mini_vllm.entrypoints.cli`."""

from mini_vllm.entrypoints.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
