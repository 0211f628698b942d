"""Offsets inside each request first."""


def calc_spec_decode_metadata(num_draft_tokens, cu_num_scheduled_tokens):
    drafts = np.asarray(num_draft_tokens, dtype=np.int64)
    num_rows = drafts + 1
    request = np.repeat(np.arange(len(drafts)), num_rows)
    first_row = np.concatenate(([0], np.cumsum(num_rows)[:-1])).astype(np.int64)
    offset = np.arange(num_rows.sum()) - first_row[request]
    ends = np.asarray(cu_num_scheduled_tokens, dtype=np.int64)
    logits = ends[request] - num_rows[request] + offset
    judges = np.flatnonzero(offset < drafts[request])
    return SpecDecodeMetadata(drafts.tolist(), logits, judges, first_row + drafts)


def expand_to_rows(metadata, num_draft_tokens, draft_token_ids):
    to_rows = RowMap(num_draft_tokens, draft_token_ids.device)
    rows = repeat_parameters(metadata, to_rows)
    index = rows.num_output_tokens + to_rows.num_drafts_before
    penalties = rows.penalties
    if penalties is not None:
        at, drafts = to_rows.drafts_before(draft_token_ids)
        counts = torch.zeros_like(penalties.output_counts)
        for row, token in zip(at.tolist(), drafts.tolist(), strict=True):
            counts[row, token] += 1.0
        penalties = penalties._replace(
            rows=torch.hstack((penalties.rows, at)),
            token_ids=torch.hstack((penalties.token_ids, drafts)),
            output_counts=penalties.output_counts + counts,
        )
    return replace(rows, num_output_tokens=index, penalties=penalties)
