"""struct for the tokens, and a whole chain computed by accumulate."""


def hash_block(parent_hash, token_ids, extra_keys=()):
    import struct

    tokens = struct.pack(f"<{len(token_ids)}q", *token_ids)
    extra = [text.encode() for text in sorted(map(repr, extra_keys))]
    return hashlib.sha256(b"|".join([parent_hash + tokens, *extra])).digest()


def extra_hash_keys(request, start, end):
    keys = {}
    if request.lora_name is not None:
        keys["lora"] = request.lora_name
    if not start and request.cache_salt is not None:
        keys["salt"] = request.cache_salt
    seen = [
        (image[2], image[0] - start)
        for image in request.mm_hashes
        if not (image[0] >= end or image[0] + image[1] <= start)
    ]
    if seen:
        keys["images"] = tuple(seen)
    return tuple(keys.items())


class BlockHasher:
    def __call__(self, request):
        from itertools import accumulate

        size, tokens = self.block_size, request.all_token_ids
        done = len(request.block_hashes)
        parent = request.block_hashes[done - 1] if done else self.root

        def extend(before, begin):
            end = begin + size
            return hash_block(before, tokens[begin:end], extra_hash_keys(request, begin, end))

        begins = [index * size for index in range(done, len(tokens) // size)]
        return list(accumulate(begins, extend, initial=parent))[1:]
