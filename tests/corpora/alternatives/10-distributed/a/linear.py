"""Loops with a start and an end of each share."""


class ColumnParallel:
    def parts(self, input_size, output_sizes):
        found = []
        for size in output_sizes:
            each = divide(size, self.group.world_size)
            start = each * self.group.rank_in_group
            found.append(Part(slice(start, start + each), slice(0, input_size)))
        return found


class QKVParallel:
    def parts(self, input_size, output_sizes):
        place, p = self.group.rank_in_group, self.group.world_size
        width = output_sizes[0] // self.num_heads
        each = divide(self.num_heads, p)
        if self.num_kv_heads >= p:
            divide(self.num_kv_heads, p)
        else:
            divide(p, self.num_kv_heads)
        look_at = self.num_heads // self.num_kv_heads
        first, last = place * each, (place + 1) * each - 1
        first_kv, last_kv = first // look_at, last // look_at
        columns = slice(0, input_size)
        q = Part(slice(first * width, (last + 1) * width), columns)
        kv = Part(slice(first_kv * width, (last_kv + 1) * width), columns)
        return [q, kv, kv]


class RowParallel:
    @property
    def adds_bias(self):
        return self.group.rank_in_group == 0

    def parts(self, input_size, output_sizes):
        each = divide(input_size, self.group.world_size)
        start = each * self.group.rank_in_group
        return [Part(slice(0, n), slice(start, start + each)) for n in output_sizes]

    def finish(self, y):
        y = self.group.all_reduce(y)
        return y
