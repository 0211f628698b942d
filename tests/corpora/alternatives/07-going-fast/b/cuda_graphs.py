"""Padding first, then the step over it; the recorded function looks its inputs up anew."""


def make_buckets(max_num_reqs):
    largest = max_num_reqs if max_num_reqs < LARGEST_BUCKET else LARGEST_BUCKET

    def step_at(size):
        return size in (1, 2, 4) or size % (8 if size <= 256 else 16) == 0

    return [size for size in range(1, largest + 1) if step_at(size) or size == largest]


def choose_bucket(num_reqs, buckets):
    return min((bucket for bucket in buckets if bucket >= num_reqs), default=None)


class StaticInputs:
    def fill(self, input_ids, positions, metadata, bucket):
        self.slot_mapping.fill_(-1)
        self.seq_lens.zero_()
        step = {
            "input_ids": input_ids,
            "positions": positions,
            "slot_mapping": metadata.slot_mapping,
            "seq_lens": metadata.seq_lens,
        }
        for name, source in step.items():
            getattr(self, name)[: len(source)] = source
        rows, width = metadata.block_table.shape
        self.block_table[:rows, :width] = metadata.block_table


class DecodeGraphs:
    def capture(self):
        self.graphs.update(
            {size: self._capture_bucket(size) for size in sorted(self.buckets, reverse=True)}
        )

    def _capture_bucket(self, bucket):
        from functools import partial

        rows = slice(0, bucket)
        step = (self.inputs.input_ids[rows], self.inputs.positions[rows])
        return self.record(partial(self.forward, *step, self.inputs.metadata(bucket)))

    def replay(self, input_ids, positions, metadata):
        bucket = choose_bucket(metadata.num_reqs, self.buckets)
        graph = self.graphs.get(bucket) if bucket else None
        if graph is None or metadata.num_decode_reqs != metadata.num_reqs:
            return None
        self.inputs.fill(input_ids, positions, metadata, bucket)
        start, output = graph
        start()
        return output.narrow(0, 0, metadata.num_reqs)
