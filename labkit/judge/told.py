"""What pytest is told about a run: names of variables, known to the parent without a pytest of its
own, whose import would be half of the parent's time."""

REPORT, SECONDS, WATCH = "LABKIT_REPORT", "LABKIT_TEST_SECONDS", "LABKIT_WATCH"
KEPT = "LABKIT_KEPT"
"""Tasks that need not run, as "03.1,03.2": their tests are left out, and not reported."""
