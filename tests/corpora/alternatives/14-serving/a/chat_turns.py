"""The mark is split off; tokens are compared in blocks."""


def render_turns(render, messages, add_generation_prompt=True, continue_final_message=False):
    if continue_final_message is False:
        return render(messages, add_generation_prompt)
    if add_generation_prompt or not messages:
        raise ValueError("nothing can be continued here")
    copies = [dict(message) for message in messages]
    content = copies[-1].get("content")
    if type(content) is not str:
        raise ValueError(f"the last content is {content!r}; it must be a text")
    copies[-1]["content"] = content + MARK
    text = render(copies, False)
    head, mark, tail = text.rpartition(MARK.strip())
    if not mark or content.strip() not in text:
        raise ValueError("the template leaves something of the last content out")
    return head if tail.startswith(" ") else head.rstrip()


def shared_blocks(before, after, block_size):
    blocks = 0
    while True:
        end = (blocks + 1) * block_size
        if end > len(before) or end >= len(after) or before[:end] != after[:end]:
            return blocks
        blocks += 1
