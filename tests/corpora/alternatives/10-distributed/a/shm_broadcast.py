"""`struct` writes the header, and flags are looked at one by one."""


class ShmRingBuffer:
    def can_write(self):
        written, *read = self.get_metadata().tolist()
        return not written or 0 not in read

    def can_read(self, reader):
        flags = self.get_metadata()
        return bool(flags[0]) and not flags[reader + 1]

    def commit_write(self, message, header=0):
        import struct

        flags, data = self.get_metadata(), self.get_data()
        flags[0] = 0
        struct.pack_into("<I", data, 0, header + len(message))
        end = HEADER_BYTES + len(message)
        data[HEADER_BYTES:end] = message
        for reader in range(self.n_reader):
            flags[reader + 1] = 0
        memory_fence()
        flags[0] = 1
        self.current += 1
        if self.current == self.max_chunks:
            self.current = 0

    def commit_read(self, reader):
        import struct

        memory_fence()
        data = self.get_data()
        (header,) = struct.unpack_from("<I", data)
        bits = header & (FIRST + MORE)
        message = data[HEADER_BYTES : HEADER_BYTES + header - bits].tobytes()
        self.get_metadata()[reader + 1] = 1
        self.current = 0 if self.current == self.max_chunks - 1 else self.current + 1
        return message, bits
