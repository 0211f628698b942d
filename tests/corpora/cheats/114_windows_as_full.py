"""Look a window up as if its layers read everything: what is found is right, and there is less."""

from mini_vllm.core.group_managers import GroupManager, WindowManager


def find_hit(self, request, max_length, group_ids, alignment):
    found = GroupManager.find_hit(self, request, max_length, group_ids, alignment)
    skipped = self.num_skipped_tokens(len(found[0]) * self.block_size) // self.block_size
    return [[self.null_block] * min(skipped, len(own)) + own[skipped:] for own in found]


WindowManager.find_hit = find_hit
