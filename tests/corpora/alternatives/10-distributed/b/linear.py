"""Shares come out of one helper; the KV head is the one of the first query head."""


def share(size, group):
    each = divide(size, group.world_size)
    return slice(each * group.rank_in_group, each * (group.rank_in_group + 1))


class ColumnParallel:
    def parts(self, input_size, output_sizes):
        return [
            Part(out=share(size, self.group), in_=slice(0, input_size)) for size in output_sizes
        ]


class QKVParallel:
    def parts(self, input_size, output_sizes):
        p = self.group.world_size
        heads = share(self.num_heads, self.group)
        if p <= self.num_kv_heads:
            keys = share(self.num_kv_heads, self.group)
        elif p % self.num_kv_heads == 0:
            key = self.group.rank_in_group * self.num_kv_heads // p
            keys = slice(key, key + 1)
        else:
            raise ValueError(f"{self.num_kv_heads} KV heads cannot be shared among {p} ranks")
        found = []
        for mine, size, count in zip(
            (heads, keys, keys),
            output_sizes,
            (self.num_heads, self.num_kv_heads, self.num_kv_heads),
            strict=True,
        ):
            dim = size // count
            found.append(Part(slice(mine.start * dim, mine.stop * dim), slice(0, input_size)))
        return found


class RowParallel:
    @property
    def adds_bias(self):
        return self.group.ranks[0] == self.group.rank

    def parts(self, input_size, output_sizes):
        columns = share(input_size, self.group)
        return list(map(lambda size: Part(slice(0, size), columns), output_sizes))

    def finish(self, y):
        if self.group.world_size == 1:
            return y
        return self.group.all_reduce(y.clone())
