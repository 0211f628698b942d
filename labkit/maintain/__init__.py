"""The maintainer's track: real bugs of the pinned vLLM, mended in the real tree.

bugs.py     the catalogue: what a user reports, and what is sealed
copy.py     the working copy, and what was changed in it
child.py    runs tests and traces on vLLM; a process of its own
rig.py      vLLM's scheduler without a model, for tests
judge.py    which runs a verdict takes, and what they say
proof.py    every bug: red on the pin, green with our fix, wrong fixes refused
exam.py     three bugs for a student, and a verdict on what was handed in
    command.py  `make maintain`, `make maintain-NN`, `make maintain-check`
"""
