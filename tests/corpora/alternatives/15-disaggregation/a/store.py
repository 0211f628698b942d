"""Checks one after the other; files by path objects only."""


def unpack_entry(namespace, block_hash, entry):
    header, payload = entry[: HEADER.size], entry[HEADER.size :]
    if len(header) != HEADER.size:
        return None
    magic, owner, name, length, checksum = HEADER.unpack(header)
    if magic != MAGIC or owner != namespace or name != block_hash:
        return None
    if length != len(payload):
        return None
    crc = zlib.crc32(HEADER.pack(magic, owner, name, length, 0))
    return None if zlib.crc32(payload, crc) != checksum else payload


class BlockStore:
    def put(self, block_hash, payload):
        path = self.path_of(block_hash)
        if not path.exists():
            new = self._temporary(path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                new.write_bytes(b"".join(pack_entry(self.namespace, block_hash, payload)))
                os.replace(new, path)
            except OSError:
                new.unlink(missing_ok=True)
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
            if payload is not None:
                os.utime(path)
            else:
                path.unlink(missing_ok=True)
        except OSError:
            return payload
        return payload

    def evict(self):
        now, files = time.time(), []
        for path, status in self._scan():
            if path.suffix != ".kv":
                if now - status.st_mtime > STALE_SECONDS:
                    path.unlink(missing_ok=True)
                continue
            files.append((path, status))
        files.sort(key=lambda entry: entry[1].st_mtime_ns, reverse=True)
        left = sum(status.st_size for _, status in files)
        while files and self.max_bytes is not None and left > self.max_bytes:
            path, status = files.pop()
            path.unlink(missing_ok=True)
            left -= status.st_size
        self.num_bytes = left
        return left
