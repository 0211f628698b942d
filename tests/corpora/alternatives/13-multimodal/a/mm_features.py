"""Rows are counted afresh, without the running sums."""


class PlaceholderRange:
    def get_embeds_indices_in_range(self, start_idx, end_idx):
        mask = self.is_embed if self.is_embed is not None else [True] * self.length
        first = sum(1 for embed in mask[:start_idx] if embed)
        return first, first + sum(1 for embed in mask[start_idx:end_idx] if embed)
