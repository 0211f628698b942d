"""The kernel checker: what is right, wrong and slow about a Triton kernel, without a GPU.

    check.py       a whole check, stage by stage; command.py and screen.py: `check-kernel`
    cases/         the problems that a kernel is judged by, and which elements it may touch
    watch/         what happens to a submission in child processes, and knows no expected value
      extract.py       source -> Submission: only kernels survive, and only what the lint allows
      crosscompile.py  Submission + Launch -> CompileReport, for a GPU that is not there
      monitor.py       Submission + problem + rules -> Observation, in Triton's interpreter
      shims.py         Triton's interpreter made right: bfloat16, TF32, NaN, speed
      findings.py      Finding: one thing that is wrong, in words for its author
    workers.py     the parent's side of these processes; requests.py: what is compiled
    verdict/       numbers against float64, traffic against the least possible; seeded bugs
    measure/       the same kernels on a GPU, and rooflines
    proof/         the corpus and the self-test that keep the checker honest
    direct.py      one problem in this very process, for public tests and notebooks

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
