"""Refusals in a function of their own; the common beginning by takewhile."""


def checked(messages, add_generation_prompt):
    if add_generation_prompt:
        raise ValueError("either a new turn, or the last one goes on")
    try:
        content = messages[-1]["content"]
    except (IndexError, KeyError):
        raise ValueError("there is no last content") from None
    if not isinstance(content, str):
        raise ValueError("the last content is no text")
    return content


def render_turns(render, messages, add_generation_prompt=True, continue_final_message=False):
    if continue_final_message:
        content = checked(messages, add_generation_prompt)
        last = dict(messages[-1], content=content + MARK)
        text = render(list(messages[:-1]) + [last], False)
        word = MARK[:-1]
        if word not in text or content.strip() not in text:
            raise ValueError("the last content is not written")
        place = text.rindex(word)
        keeps_spaces = text[place : place + len(MARK)] == MARK
        text = text[:place]
        return text if keeps_spaces else text.rstrip()
    return render(messages, add_generation_prompt)


def shared_blocks(before, after, block_size):
    from itertools import takewhile

    pairs = zip(before, after, strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return min(same, len(after) - 1) // block_size
