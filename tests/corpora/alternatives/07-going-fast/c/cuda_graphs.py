"""Sets of sizes, whole padded tensors copied at once, a recursion over the buckets."""


def make_buckets(max_num_reqs):
    largest = min(max_num_reqs, LARGEST_BUCKET)
    sizes = {1, 2, 4} | {8 * n for n in range(1, 33)} | {16 * n for n in range(16, 33)}
    return sorted({size for size in sizes if size <= largest} | {largest})


def choose_bucket(num_reqs, buckets):
    low, high = 0, len(buckets)
    while low < high:
        middle = (low + high) // 2
        if buckets[middle] < num_reqs:
            low = middle + 1
        else:
            high = middle
    return None if low == len(buckets) else buckets[low]


class StaticInputs:
    def fill(self, input_ids, positions, metadata, bucket):
        def padded(tensor, value):
            rest = tensor.new_full((bucket - len(tensor),), value)
            return torch.cat([tensor, rest])

        self.slot_mapping[:bucket].copy_(padded(metadata.slot_mapping, -1))
        self.seq_lens[:bucket].copy_(padded(metadata.seq_lens, 0))
        self.input_ids[:bucket].copy_(padded(input_ids, 0))
        self.positions[:bucket].copy_(padded(positions, 0))
        rest = self.block_table.shape[1] - metadata.block_table.shape[1]
        table = torch.nn.functional.pad(metadata.block_table, (0, rest))
        self.block_table[: len(table)].copy_(table)


class DecodeGraphs:
    def capture(self):
        def record_from(index):
            if index >= 0:
                bucket = self.buckets[index]
                self.graphs[bucket] = self._capture_bucket(bucket)
                record_from(index - 1)

        record_from(len(self.buckets) - 1)

    def _capture_bucket(self, bucket):
        def run():
            inputs = self.inputs
            ids = inputs.input_ids.narrow(0, 0, bucket)
            return self.forward(ids, inputs.positions.narrow(0, 0, bucket), inputs.metadata(bucket))

        return self.record(run)

    def replay(self, input_ids, positions, metadata):
        if metadata.num_decode_reqs == metadata.num_reqs:
            bucket = choose_bucket(len(input_ids), self.buckets)
            if bucket in self.graphs:
                replay, output = self.graphs[bucket]
                self.inputs.fill(input_ids, positions, metadata, bucket)
                replay()
                return output.split([len(input_ids), bucket - len(input_ids)])[0]
        return None
