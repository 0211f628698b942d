"""Big-endian tokens and length-prefixed parts: another encoding with the same distinctions."""


def hash_block(parent_hash, token_ids, extra_keys=()):
    parts = [parent_hash, b"".join(int(t).to_bytes(8, "big", signed=True) for t in token_ids)]
    parts += [repr(key).encode() for key in extra_keys]
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hashlib.sha256(framed).digest()


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
