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
