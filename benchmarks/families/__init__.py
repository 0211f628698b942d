"""Is every family's output that of transformers? Tiny checkpoints made from seeds, and the answers.

python -m benchmarks.families                 the parity table, against recorded answers
python -m benchmarks.families --record        ask transformers anew (tokens.json)
"""
