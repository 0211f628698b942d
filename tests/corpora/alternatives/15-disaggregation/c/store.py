"""Step by step, each failure where it happens."""


def unpack_entry(namespace, block_hash, entry):
    if len(entry) < HEADER.size:
        return None
    magic, space, name, length, checksum = HEADER.unpack_from(entry)
    payload = entry[HEADER.size :]
    if magic != MAGIC or space != namespace or name != block_hash or length != len(payload):
        return None
    zeroed = HEADER.pack(magic, space, name, length, 0)
    return bytes(payload) if zlib.crc32(zeroed + payload) == checksum else None


class BlockStore:
    def put(self, block_hash, payload):
        if self.contains(block_hash):
            return True
        path = self.path_of(block_hash)
        temporary = self._temporary(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                for piece in pack_entry(self.namespace, block_hash, payload):
                    file.write(piece)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            return False
        self._count(HEADER.size + len(payload))
        return True

    def get(self, block_hash):
        path = self.path_of(block_hash)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        payload = unpack_entry(self.namespace, block_hash, entry)
        try:
            if payload is None:
                path.unlink(missing_ok=True)
            else:
                os.utime(path)
        except OSError:
            return payload
        return payload

    def evict(self):
        finished = []
        for path, stat in self._scan():
            if path.suffix == ".kv":
                finished.append((stat.st_mtime_ns, stat.st_size, path))
            elif path.suffix == ".tmp" and time.time() - stat.st_mtime > STALE_SECONDS:
                path.unlink(missing_ok=True)
        left = sum(size for _, size, _ in finished)
        if self.max_bytes is not None:
            for _, size, path in sorted(finished):
                if left <= self.max_bytes:
                    break
                path.unlink(missing_ok=True)
                left -= size
        self.num_bytes = left
        return left
