"""Sets say who goes and who comes; the flat batch is read from flat indices into the table."""


class ModelRunner:
    def _update_states(self, output):
        self._remove_requests(output)
        list(map(self._add_new_request, output.scheduled_new_reqs))
        self._update_cached_requests(output)
        self.batch.condense()

    def _remove_requests(self, output):
        for req_id in set(output.finished_req_ids).union(output.preempted_req_ids):
            self.batch.remove_request(req_id)
        kept = self.requests.keys() - set(output.finished_req_ids)
        self.requests = {
            req_id: self.requests[req_id] for req_id in self.requests if req_id in kept
        }

    def _add_new_request(self, new):
        self.requests[new.req_id] = CachedRequestState(
            new.req_id,
            list(new.prompt_token_ids),
            new.sampling_params,
            new.eos_token_id,
            [],
            new.lora_name,
        )
        self.batch.add_request(self.requests[new.req_id], new.block_ids, new.num_computed_tokens)

    def _update_cached_requests(self, output):
        cached = output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        running = [req_id for req_id in cached.req_ids if req_id not in cached.resumed_req_ids]
        for req_id in running:
            if req_id in output.new_block_ids:
                self.batch.append_blocks(req_id, output.new_block_ids[req_id])
            self.batch.num_computed_tokens[self.batch.req_id_to_row[req_id]] = computed[req_id]
        for req_id in cached.req_ids:
            if req_id in cached.resumed_req_ids:
                blocks = output.new_block_ids.get(req_id, [])
                self.batch.add_request(self.requests[req_id], blocks, computed[req_id])

    def _order_requests(self, output):
        names = np.array(list(output.num_scheduled_tokens), dtype=object)
        names = names[decodes_first(output.num_scheduled_tokens.values())].tolist()
        rows = np.fromiter(map(self.batch.req_id_to_row.__getitem__, names), np.int64)
        counts = np.fromiter(map(output.num_scheduled_tokens.__getitem__, names), np.int32)
        return names, rows, counts

    def _prepare_inputs(self, output):
        names, rows, counts = self._order_requests(output)
        table = self.batch.token_ids
        before, known = self.batch.num_computed_tokens[rows], self.batch.num_tokens[rows]
        flat = flatten_tokens(counts, before)
        places = rows[flat.req_indices] * table.shape[1] + flat.positions
        sampled, last = rows_to_sample(flat, before + counts, known)
        return StepInputs(
            req_ids=names,
            input_ids=self._to_device(np.take(table, places)),
            positions=self._to_device(flat.positions),
            metadata=self._attention_metadata(rows, flat, counts, before + counts),
            sample_rows=np.take(rows, sampled),
            logits_indices=self._to_device(last),
        )

    def _attention_metadata(self, rows, flat, num_scheduled, seq_lens):
        batch = self.batch
        table = batch.block_table[rows][:, : np.max(batch.num_blocks[rows])]
        place = flat.positions // batch.block_size
        blocks = table[flat.req_indices, place].astype(np.int64)
        slots = blocks * batch.block_size + flat.positions % batch.block_size
        return AttentionMetadata(
            query_start_loc=self._to_device(flat.query_start_loc),
            seq_lens=self._to_device(seq_lens),
            block_table=self._to_device(np.ascontiguousarray(table)),
            slot_mapping=self._to_device(slots),
            max_query_len=int(np.max(num_scheduled)),
            max_seq_len=int(np.max(seq_lens)),
            num_decode_reqs=int(np.count_nonzero(num_scheduled == 1)),
            query_lens_cpu=[int(count) for count in num_scheduled],
            seq_lens_cpu=[int(length) for length in seq_lens],
        )
