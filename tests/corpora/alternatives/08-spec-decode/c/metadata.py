"""Rows by what is no bonus; penalties replaced by name."""


def calc_spec_decode_metadata(num_draft_tokens, cu_num_scheduled_tokens):
    num_drafts = np.asarray(num_draft_tokens, dtype=np.int64)
    ends = np.asarray(cu_num_scheduled_tokens, dtype=np.int64)
    row_ends = np.cumsum(num_drafts + 1)
    shift = np.repeat(ends - row_ends, num_drafts + 1)
    rows = np.arange(len(shift), dtype=np.int64)
    bonus = row_ends - 1
    targets = np.setdiff1d(rows, bonus)
    return SpecDecodeMetadata(num_drafts.tolist(), rows + shift, targets, bonus)


def expand_to_rows(metadata, num_draft_tokens, draft_token_ids):
    to_rows = RowMap(num_draft_tokens, metadata.num_output_tokens.device)
    expanded = repeat_parameters(metadata, to_rows)
    longer = expanded.num_output_tokens + to_rows.num_drafts_before
    penalties = expanded.penalties
    if penalties is not None:
        rows, tokens = to_rows.drafts_before(draft_token_ids)
        counts = penalties.output_counts.clone()
        ones = torch.ones(len(rows), dtype=counts.dtype, device=counts.device)
        counts.index_put_((rows, tokens), ones, accumulate=True)
        penalties = penalties._replace(
            rows=torch.cat([penalties.rows, rows]),
            token_ids=torch.cat([penalties.token_ids, tokens]),
            output_counts=counts,
        )
    return replace(expanded, num_output_tokens=longer, penalties=penalties)
