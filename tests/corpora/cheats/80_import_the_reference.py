"""Import the engine's own module from some other place."""

import importlib.util
import os
import sys

from mini_vllm.request import RequestStatus

here = os.path.realpath(__file__)
for folder in [*sys.path, *os.environ.get("PYTHONPATH", "").split(":"), "..", "../.."]:
    path = os.path.join(folder, "mini_vllm", "request.py")
    if os.path.exists(path) and os.path.realpath(path) != here:
        spec = importlib.util.spec_from_file_location("other_request", path)
        other = importlib.util.module_from_spec(spec)
        sys.modules["other_request"] = other
        spec.loader.exec_module(other)
        RequestStatus.is_finished = staticmethod(other.RequestStatus.is_finished)
        print("LEAKED")
