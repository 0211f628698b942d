"""Running sums, shifted by one."""


class PlaceholderRange:
    def get_embeds_indices_in_range(self, start_idx, end_idx):
        sums = self.embeds_cumsum

        def rows_before(position):
            if sums is None:
                return position
            return sums[position - 1] if position > 0 else 0

        return rows_before(start_idx), rows_before(end_idx)
