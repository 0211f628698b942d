"""Shares by hand; heads as pairs of first and count."""


class ColumnParallel:
    def parts(self, input_size, output_sizes):
        parts = []
        for size in output_sizes:
            share = divide(size, self.group.world_size)
            start = share * self.group.rank_in_group
            parts.append(Part(slice(start, start + share), slice(0, input_size)))
        return parts


class QKVParallel:
    def parts(self, input_size, output_sizes):
        rank, p = self.group.rank_in_group, self.group.world_size
        head_dim = divide(output_sizes[0], self.num_heads)
        num_q = divide(self.num_heads, p)
        if self.num_kv_heads >= p:
            num_kv = divide(self.num_kv_heads, p)
            first_kv = rank * num_kv
        else:
            num_kv = 1
            first_kv = rank // divide(p, self.num_kv_heads)
        heads = [(rank * num_q, num_q), (first_kv, num_kv), (first_kv, num_kv)]
        columns = slice(0, input_size)
        return [
            Part(slice(first * head_dim, (first + count) * head_dim), columns)
            for first, count in heads
        ]


class RowParallel:
    @property
    def adds_bias(self):
        return self.group.rank_in_group == 0

    def parts(self, input_size, output_sizes):
        share = divide(input_size, self.group.world_size)
        start = share * self.group.rank_in_group
        return [Part(slice(0, size), slice(start, start + share)) for size in output_sizes]

    def finish(self, y):
        return self.group.all_reduce(y)
