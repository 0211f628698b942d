"""The kinds of questions, a module for each phase; see `labkit.practice.question`."""
