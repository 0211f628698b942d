"""Request by request: each brings its own tokens, positions and slots."""


class ModelRunner:
    def _update_states(self, output):
        self._remove_requests(output)
        for new in output.scheduled_new_reqs:
            self._add_new_request(new)
        self._update_cached_requests(output)
        if len(self.batch.rows) > self.batch.num_reqs:
            self.batch.condense()

    def _remove_requests(self, output):
        for req_id in [*output.finished_req_ids, *output.preempted_req_ids]:
            self.batch.remove_request(req_id)
            if req_id in output.finished_req_ids and req_id in self.requests:
                del self.requests[req_id]

    def _add_new_request(self, new):
        state = CachedRequestState(
            req_id=new.req_id,
            prompt_token_ids=new.prompt_token_ids,
            sampling_params=new.sampling_params,
            eos_token_id=new.eos_token_id,
            output_token_ids=[],
            lora_name=new.lora_name,
        )
        self.batch.add_request(state, new.block_ids, new.num_computed_tokens)
        self.requests[state.req_id] = state

    def _update_cached_requests(self, output):
        cached = output.scheduled_cached_reqs
        for index, req_id in enumerate(cached.req_ids):
            blocks = output.new_block_ids.get(req_id, [])
            if req_id in cached.resumed_req_ids:
                state = self.requests[req_id]
                self.batch.add_request(state, blocks, cached.num_computed_tokens[index])
                continue
            row = self.batch.req_id_to_row[req_id]
            self.batch.num_computed_tokens[row] = cached.num_computed_tokens[index]
            self.batch.append_blocks(req_id, blocks)

    def _order_requests(self, output):
        plan = list(output.num_scheduled_tokens.items())
        plan = [plan[index] for index in decodes_first([count for _, count in plan]).tolist()]
        ids = [req_id for req_id, _ in plan]
        rows = [self.batch.req_id_to_row[req_id] for req_id in ids]
        counts = [count for _, count in plan]
        return ids, np.array(rows, np.int64), np.array(counts, np.int32)

    def _prepare_inputs(self, output):
        batch = self.batch
        ids, rows, counts = self._order_requests(output)
        computed = batch.num_computed_tokens[rows]
        flat = flatten_tokens(counts, computed)
        tokens = np.concatenate(
            [
                batch.token_ids[row, start : start + count]
                for row, start, count in zip(rows, computed, counts, strict=True)
            ]
        )
        lengths = computed + counts
        sampled, last = rows_to_sample(flat, lengths, batch.num_tokens[rows])
        metadata = self._attention_metadata(rows, flat, counts, lengths)
        return StepInputs(
            ids,
            self._to_device(tokens),
            self._to_device(flat.positions),
            metadata,
            rows[sampled],
            self._to_device(last),
        )

    def _attention_metadata(self, rows, flat, num_scheduled, seq_lens):
        batch = self.batch
        width = max(int(batch.num_blocks[row]) for row in rows)
        table = np.stack([batch.block_table[row, :width] for row in rows])
        owners = np.repeat(rows, num_scheduled)
        counts, lengths = num_scheduled.tolist(), seq_lens.tolist()
        return AttentionMetadata(
            self._to_device(flat.query_start_loc),
            self._to_device(seq_lens),
            self._to_device(table),
            self._to_device(batch.slot_mapping(owners, flat.positions)),
            max(counts),
            max(lengths),
            counts.count(1),
            counts,
            lengths,
        )
