"""What should stand there is packed, and compared with what does."""


def unpack_entry(namespace, block_hash, entry):
    payload = bytes(entry[HEADER.size :])
    should = b"".join(pack_entry(namespace, block_hash, payload))
    return payload if should == bytes(entry) and len(entry) >= HEADER.size else None


class BlockStore:
    def put(self, block_hash, payload):
        target = self.path_of(block_hash)
        if target.exists():
            return True
        part = self._temporary(target)
        done = False
        try:
            target.parent.mkdir(exist_ok=True)
            with open(part, "wb") as file:
                for piece in pack_entry(self.namespace, block_hash, payload):
                    file.write(piece)
            os.replace(part, target)
            done = True
        except OSError:
            part.unlink(missing_ok=True)
        if done:
            self._count(len(payload) + HEADER.size)
        return done

    def get(self, block_hash):
        path, payload = self.path_of(block_hash), None
        try:
            with open(path, "rb") as file:
                payload = unpack_entry(self.namespace, block_hash, file.read())
            if payload is None:
                os.unlink(path)
            else:
                os.utime(path, None)
        except OSError:
            pass
        return payload

    def evict(self):
        found = list(self._scan())
        for path, status in found:
            if path.suffix != ".kv" and time.time() > status.st_mtime + STALE_SECONDS:
                path.unlink(missing_ok=True)
        blocks = [(s.st_mtime_ns, str(p), p, s.st_size) for p, s in found if p.suffix == ".kv"]
        total = sum(size for *_, size in blocks)
        limit = total if self.max_bytes is None else self.max_bytes
        for _, _, path, size in sorted(blocks):
            if total > limit:
                path.unlink(missing_ok=True)
                total -= size
        self.num_bytes = total
        return total
