"""One token at a time, and extra keys behind their lengths."""


def hash_block(parent_hash, token_ids, extra_keys=()):
    message = parent_hash + b"".join(int(t).to_bytes(8, "little", signed=True) for t in token_ids)
    for key in extra_keys:
        text = repr(key).encode()
        message += len(text).to_bytes(8, "big") + text
    return hashlib.sha256(message).digest()


def extra_hash_keys(request, start, end):
    adapter = [] if request.lora_name is None else ["lora", request.lora_name]
    salt = [] if start or request.cache_salt is None else ["salt", request.cache_salt]
    images = [
        (content_hash, offset - start)
        for offset, length, content_hash in request.mm_hashes
        if max(offset, start) < min(offset + length, end)
    ]
    return tuple(group for group in (tuple(adapter), tuple(salt), *images) if group)


class BlockHasher:
    def __call__(self, request):
        chain = list(request.block_hashes)
        known, size = len(chain), self.block_size
        for index in range(known, len(request.all_token_ids) // size):
            start, end = index * size, (index + 1) * size
            parent = chain[index - 1] if index else self.root
            keys = extra_hash_keys(request, start, end)
            chain.append(hash_block(parent, request.all_token_ids[start:end], keys))
        return chain[known:]
