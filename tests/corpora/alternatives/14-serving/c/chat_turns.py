"""One way out for all refusals; blocks are compared as tuples."""


def render_turns(render, messages, add_generation_prompt=True, continue_final_message=False):
    text, why = "", ""
    if not continue_final_message:
        return render(messages, add_generation_prompt)
    last = messages[-1] if messages else {}
    content = last.get("content")
    if add_generation_prompt:
        why = "both at once"
    elif not isinstance(content, str):
        why = "no text to go on with"
    else:
        turns = [*messages]
        turns[-1] = last | {"content": f"{content}{MARK}"}
        text = render(turns, False)
        if MARK[:-1] not in text or content.strip() not in text:
            why = "the template leaves the content out"
    if why:
        raise ValueError(why)
    parts = text.split(MARK[:-1])
    head = MARK[:-1].join(parts[:-1])
    return head if parts[-1][:1] == " " else head.rstrip()


def shared_blocks(before, after, block_size):
    def blocks(tokens):
        ends = range(block_size, len(tokens) + 1, block_size)
        return [tuple(tokens[end - block_size : end]) for end in ends]

    found = 0
    for old, new in zip(blocks(before), blocks(after[:-1]), strict=False):
        if old != new:
            return found
        found += 1
    return found
