"""Mixtures of experts: many small MLPs, of which each token uses a few.

config.json ─► args.py     MoEArgs: how many experts, which router, which activation
files       ─► expert_names.py  which expert, and which projection, a tensor holds
               files.py    every form of a checkpoint, read as experts one by one
               routers.py  scores [T, E] ─► the k experts of each token, and their weights
               grouped.py  rows sorted by expert, multiplied, weighted, added
               experts.py  the experts themselves: a stack of matrices, or modules
               layer.py    SparseMoE: router, experts and shared experts in place of an MLP
"""
