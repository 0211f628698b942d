"""The course's tooling: set-up, skeletons, runner, tracing, citations and the command line."""
