"""What of a kernel is compiled: the launches that stand for all others.

Each dtype and each yes-or-no constant that a launcher chooses, with the largest tiles; a launch in
which an argument is 1, which Triton makes a constant of; and each way that the submission itself
goes by its constants.
"""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from functools import cache
from typing import Any

from labkit.kernels.cases import build, cases_of
from labkit.kernels.watch.branches import ways
from labkit.kernels.watch.crosscompile import CompileRequest, compile_request
from labkit.kernels.watch.extract import Submission, functions_of
from mini_vllm.kernels.launch import KernelSpec

CAPABILITIES = (80, 90)
Named = tuple[str, CompileRequest]
"""A request with the name of its case."""


@cache
def all_requests(
    spec: KernelSpec, optional: tuple[str, ...] = ()
) -> tuple[tuple[str, str, CompileRequest], ...]:
    """(case, its dtype, request) of every launch of every case, for the newest capability.

    `optional`: the parameters with a default that the kernels have.
    """
    return tuple(
        (case.name, case.dtype, compile_request(launch, CAPABILITIES[-1]))
        for case in cases_of(spec.name, optional)
        for launch in spec.plan(**build(spec.name, case.name, 0)[0])
    )


def size_of(request: CompileRequest) -> int:
    """Elements of all its tiles, as if they were one."""
    return math.prod(int(v) for k, v in request.values.items() if k.endswith("TILE"))


@cache
def launch_requests(spec: KernelSpec, optional: tuple[str, ...] = ()) -> tuple[Named, ...]:
    """What stands for the launches of a spec, whatever the kernel's text; see `all_requests`."""
    found: dict[Any, Named] = {}
    for case, dtype, request in all_requests(spec, optional):
        flags = tuple((k, v) for k, v in request.values.items() if isinstance(v, bool))
        key = (request.kernel, dtype, flags, frozenset(request.types))
        if key not in found or size_of(request) > size_of(found[key][1]):
            found[key] = (case, request)
        for name in request.values:
            if name.islower():  # an argument, not a constant: it is 1
                found.setdefault((request.kernel, name), (case, request))
    return tuple(
        {(case, request.kernel): (case, request) for case, request in found.values()}.values()
    )


def branch_requests(spec: KernelSpec, submission: Submission) -> list[Named]:
    """For each way that the kernels go by their constants, and none of the others has gone, one."""
    functions = functions_of(ast.parse(submission.source))

    def taken(request: CompileRequest) -> set[Any]:
        function = functions.get(request.kernel)
        found = ways(function, request.values) if function else ()
        return {(request.kernel, *way) for way in found}

    optional = submission.optional
    gone = set[Any]().union(*(taken(request) for _, request in launch_requests(spec, optional)))
    more: list[Named] = []
    for case, _, request in all_requests(spec, optional):
        if not taken(request) <= gone:
            gone |= taken(request)
            more.append((case, request))
    return more


def requests_of(spec: KernelSpec, submission: Submission) -> list[tuple[int, str, CompileRequest]]:
    """(capability, case, request) of all that is compiled of a submission."""
    launched = launch_requests(spec, submission.optional)
    return [
        (capability, case, replace(request, capability=capability))
        for case, request in (*launched, *branch_requests(spec, submission))
        for capability in CAPABILITIES
    ]
