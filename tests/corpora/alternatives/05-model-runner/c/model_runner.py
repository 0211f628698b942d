"""Every request becomes a triple of id, row and count; metadata is built from lists."""


class ModelRunner:
    def _update_states(self, output):
        self._remove_requests(output)
        self._update_cached_requests(output)
        for request in reversed(output.scheduled_new_reqs):
            self._add_new_request(request)
        self.batch.condense()

    def _remove_requests(self, output):
        for req_id in output.preempted_req_ids:
            self.batch.remove_request(req_id)
        while gone := [req_id for req_id in output.finished_req_ids if req_id in self.requests]:
            self.batch.remove_request(gone[0])
            self.requests.pop(gone[0])

    def _add_new_request(self, new):
        names = ("req_id", "prompt_token_ids", "sampling_params", "eos_token_id", "lora_name")
        state = CachedRequestState(**{name: getattr(new, name) for name in names})
        self.requests |= {new.req_id: state}
        self.batch.add_request(state, new.block_ids, new.num_computed_tokens)

    def _update_cached_requests(self, output):
        cached, batch = output.scheduled_cached_reqs, self.batch

        def resume(req_id, blocks, computed):
            batch.add_request(self.requests[req_id], blocks, computed)

        def go_on(req_id, blocks, computed):
            batch.append_blocks(req_id, blocks)
            np.put(batch.num_computed_tokens, batch.req_id_to_row[req_id], computed)

        for req_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            change = resume if req_id in cached.resumed_req_ids else go_on
            change(req_id, output.new_block_ids.get(req_id, []), computed)

    def _order_requests(self, output):
        counts = output.num_scheduled_tokens
        req_ids = [r for r in counts if counts[r] == 1] + [r for r in counts if counts[r] != 1]
        rows = np.array([self.batch.req_id_to_row[r] for r in req_ids]).astype(np.int64)
        return req_ids, rows, np.array([counts[r] for r in req_ids]).astype(np.int32)

    def _prepare_inputs(self, output):
        batch = self.batch
        req_ids, rows, num_scheduled = self._order_requests(output)
        flat = flatten_tokens(num_scheduled, batch.num_computed_tokens[rows])
        seq_lens = num_scheduled + batch.num_computed_tokens[rows]
        owners = np.repeat(rows, num_scheduled)
        sampled, last = rows_to_sample(flat, seq_lens, batch.num_tokens[rows])
        return StepInputs(
            req_ids=req_ids,
            input_ids=self._to_device(batch.token_ids[owners, flat.positions]),
            positions=self._to_device(flat.positions),
            metadata=self._attention_metadata(rows, flat, num_scheduled, seq_lens),
            sample_rows=rows[sampled],
            logits_indices=self._to_device(last),
        )

    def _attention_metadata(self, rows, flat, num_scheduled, seq_lens):
        batch = self.batch
        tables = [batch.block_table[row, : batch.num_blocks[row]].tolist() for row in rows]
        return AttentionMetadata.from_lists(
            num_scheduled.tolist(), seq_lens.tolist(), tables, batch.block_size, self.device
        )
