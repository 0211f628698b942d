"""The parts from which `model/decoder.py` builds a family's layers."""
