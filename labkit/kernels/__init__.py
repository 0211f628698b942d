"""The kernel checker: what is right, wrong and slow about a Triton kernel, without a GPU.

    findings.py      Finding: one thing that is wrong, in words for its author
    rules.py         CaseRules: which elements of a case's tensors may be read, must be written
    observation.py   Observation: what a monitored run saw, its findings and its traffic
    extract.py       source -> Submission: only kernels survive, and only what the lint allows
    crosscompile.py  Submission + Launch -> CompileReport, for a GPU that is not there
    branches.py      which way a kernel goes by its constants, so that each is compiled
    monitor.py       Submission + problem + rules -> Observation, in Triton's interpreter
    memory.py        the tensors of a problem as the monitor sees them, element by element
    shims.py         Triton's interpreter made right: bfloat16, TF32, NaN, speed
    sandbox.py       all of it in child processes

The calls that matter:

    extract(source, spec, filename) -> Submission | list[Finding]
    compile_request(launch, capability) -> CompileRequest     plain data, needs no Triton
    Sandbox(root).compile(submission, request) -> CompileReport | Finding
    Sandbox(root).observe(submission, spec.name, case, seed, order, poison)
        -> Observation | Finding     the child builds the case itself, from its name and its seed:
                                     cases.build(spec.name, case, seed) -> (problem, CaseRules)
    run_monitored(submission, spec, problem, rules, order, seed, poison) -> Observation
        what `observe` calls in the child

A process either interprets kernels (`TRITON_INTERPRET=1` when Triton is imported) or compiles them,
never both; and the process that judges does neither. So `monitor` and `crosscompile` are called
through the workers of `sandbox`.
"""
