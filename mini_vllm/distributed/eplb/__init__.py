"""Expert parallelism load balancing (EPLB): which rank has which experts, by how busy they are.

logical expert    one of the model's E
redundant         a copy of a busy one
physical expert   a place for one expert on one rank; E + num_redundant_experts in all

policy.py    loads [layers, E] ─► the logical expert of each place [layers, P]
state.py     counts the tokens of each place, asks the policy now and then
    moves.py     brings weights to their new places
    parcels.py   packed ones as bytes
    picture.py   the hot experts, as text
"""

from mini_vllm.distributed.eplb.policy import rebalance_experts

__all__ = ["rebalance_experts"]
