"""Find no state, whatever was kept: each prompt is computed again, and its answers are right."""

from mini_vllm.core.group_managers import StateManager


def find_hit(self, request, max_length, group_ids, alignment):
    return [[] for _ in group_ids]


StateManager.find_hit = find_hit
