"""Loops that count up: sizes, buckets, rows."""


def make_buckets(max_num_reqs):
    limit = min(LARGEST_BUCKET, max_num_reqs)
    buckets, size = [], 1
    while size < limit:
        buckets.append(size)
        if size < 8:
            size *= 2
        elif size < 256:
            size += 8
        else:
            size += 16
    return [*buckets, limit]


def choose_bucket(num_reqs, buckets):
    for bucket in buckets:
        if num_reqs <= bucket:
            return bucket
    return None


class StaticInputs:
    def fill(self, input_ids, positions, metadata, bucket):
        width = metadata.block_table.shape[1]
        for row in range(bucket):
            if row >= len(input_ids):
                self.slot_mapping[row] = -1
                self.seq_lens[row] = 0
                continue
            self.input_ids[row] = input_ids[row]
            self.positions[row] = positions[row]
            self.slot_mapping[row] = metadata.slot_mapping[row]
            self.seq_lens[row] = metadata.seq_lens[row]
            self.block_table[row, :width] = metadata.block_table[row]


class DecodeGraphs:
    def capture(self):
        todo = list(self.buckets)
        while todo:
            bucket = todo.pop()
            self.graphs[bucket] = self._capture_bucket(bucket)

    def _capture_bucket(self, bucket):
        ids, positions = self.inputs.input_ids[:bucket], self.inputs.positions[:bucket]
        metadata = self.inputs.metadata(bucket)

        def run():
            return self.forward(ids, positions, metadata)

        return self.record(run)

    def replay(self, input_ids, positions, metadata):
        if any(length != 1 for length in metadata.query_lens_cpu):
            return None
        bucket = choose_bucket(len(input_ids), self.buckets)
        if self.graphs.get(bucket) is None:
            return None
        self.inputs.fill(input_ids, positions, metadata, bucket)
        self.graphs[bucket][0]()
        return self.graphs[bucket][1][: len(input_ids)]
