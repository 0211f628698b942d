"""The parts that `model/decoder.py` builds a family's layers of."""
