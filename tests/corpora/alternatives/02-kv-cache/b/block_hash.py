"""numpy's bytes, extra keys as JSON, and a hasher that walks the chain with a generator."""


def hash_block(parent_hash, token_ids, extra_keys=()):
    import json

    import numpy as np

    extra = json.dumps([repr(key) for key in extra_keys]).encode() if extra_keys else b""
    return hashlib.sha256(
        b"".join((parent_hash, np.asarray(token_ids, dtype="<i8").tobytes(), extra))
    ).digest()


def extra_hash_keys(request, start, end):
    def keys():
        if request.lora_name is not None:
            yield f"adapter {request.lora_name!r}"
        if start == 0 and request.cache_salt is not None:
            yield f"salt {request.cache_salt!r}"
        for offset, length, content_hash in request.mm_hashes:
            overlap = range(max(offset, start), min(offset + length, end))
            if len(overlap):
                yield f"image {content_hash!r} at {offset - start}"

    return tuple(keys())


class BlockHasher:
    def __call__(self, request):
        def chain():
            parent = next(reversed(request.block_hashes), self.root)
            begin = len(request.block_hashes) * self.block_size
            while begin + self.block_size <= len(request.all_token_ids):
                end = begin + self.block_size
                tokens = request.all_token_ids[begin:end]
                parent = hash_block(parent, tokens, extra_hash_keys(request, begin, end))
                yield parent
                begin = end

        return list(chain())
