"""A loop over requests."""


def calc_spec_decode_metadata(num_draft_tokens, cu_num_scheduled_tokens):
    rows, targets, bonus = [], [], []
    for drafts, end in zip(num_draft_tokens, cu_num_scheduled_tokens, strict=True):
        for token in range(int(end) - int(drafts) - 1, int(end)):
            (bonus if token == int(end) - 1 else targets).append(len(rows))
            rows.append(token)
    counts = [int(drafts) for drafts in num_draft_tokens]
    arrays = (np.array(values, dtype=np.int64) for values in (rows, targets, bonus))
    return SpecDecodeMetadata(counts, *arrays)


def expand_to_rows(metadata, num_draft_tokens, draft_token_ids):
    to_rows = RowMap(num_draft_tokens, draft_token_ids.device)
    rows = repeat_parameters(metadata, to_rows)
    index = rows.num_output_tokens.clone()
    penalties, start, row = rows.penalties, 0, 0
    more_rows, more_tokens = [], []
    for count in num_draft_tokens:
        drafts = draft_token_ids[start : start + count].tolist()
        for j in range(count + 1):
            index[row] += j
            more_rows += [row] * j
            more_tokens += drafts[:j]
            row += 1
        start += count
    rows.num_output_tokens = index
    if penalties is not None and more_rows:
        counts = penalties.output_counts.clone()
        for at, token in zip(more_rows, more_tokens, strict=True):
            counts[at, token] += 1
        rows.penalties = Penalties(
            torch.cat((penalties.rows, torch.tensor(more_rows))),
            torch.cat((penalties.token_ids, torch.tensor(more_tokens))),
            counts,
            *penalties[3:],
        )
    return rows
