"""Row by row and slot by slot, as the definition says."""


def apply_dense(x, y, lora_a, lora_b, columns, foreign):
    for slot in range(lora_a.shape[0]):
        for index, part in enumerate(columns):
            h = x @ lora_a[slot, index].T
            if foreign is not None:
                h[foreign[:, slot]] = 0.0
            y[:, part] = y[:, part] + h @ lora_b[slot][:, part]


def apply_grouped(x, y, lora_a, lora_b, columns, groups):
    for slot, rows in groups:
        for row in rows.tolist():
            for index, part in enumerate(columns):
                y[row, part] += (lora_a[slot, index] @ x[row]) @ lora_b[slot][:, part]
