"""Flags unpacked; the header's two parts by exclusive or."""


class ShmRingBuffer:
    def can_write(self):
        written, *read = self.get_metadata()
        return written == 0 or 0 not in read

    def can_read(self, reader):
        flags = self.get_metadata()
        return flags[0] == 1 and flags[1 + reader] == 0

    def commit_write(self, message, header=0):
        flags, data = self.get_metadata(), self.get_data()
        flags[0] = 0
        memory_fence()
        data[:HEADER_BYTES] = (len(message) | header).to_bytes(HEADER_BYTES, "little")
        data[HEADER_BYTES : HEADER_BYTES + len(message)] = message
        for reader in range(self.n_reader):
            flags[1 + reader] = 0
        memory_fence()
        flags[0] = 1
        self.current = (self.current + 1) % self.max_chunks

    def commit_read(self, reader):
        memory_fence()
        data = self.get_data()
        header = int.from_bytes(data[:HEADER_BYTES], "little")
        bits = header & (MORE | FIRST)
        length = header ^ bits
        message = bytes(data[HEADER_BYTES : HEADER_BYTES + length])
        self.get_metadata()[1 + reader] = 1
        self.current = (self.current + 1) % self.max_chunks
        return message, bits
