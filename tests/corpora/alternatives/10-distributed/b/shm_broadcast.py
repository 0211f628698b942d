"""The whole frame is made first, and copied at once."""


class ShmRingBuffer:
    def can_write(self):
        flags = bytes(self.get_metadata())
        return flags[0] != 1 or flags.count(1) == 1 + self.n_reader

    def can_read(self, reader):
        flags = self.get_metadata()
        return (flags[0], flags[1 + reader]) == (1, 0)

    def commit_write(self, message, header=0):
        frame = (header | len(message)).to_bytes(HEADER_BYTES, "little") + message
        written, read = self.get_metadata()[:1], self.get_metadata()[1:]
        written[0] = 0
        self.get_data()[: len(frame)] = frame
        read[:] = b"\0" * len(read)
        memory_fence()
        written[0] = 1
        self.current = divmod(self.current + 1, self.max_chunks)[1]

    def commit_read(self, reader):
        memory_fence()
        chunk = self.get_data()
        number = sum(byte << 8 * place for place, byte in enumerate(chunk[:HEADER_BYTES]))
        message = bytearray(number % FIRST)
        message[:] = chunk[HEADER_BYTES : HEADER_BYTES + len(message)]
        copied = bytes(message)
        self.get_metadata()[1 + reader] = 1
        self.current = (1 + self.current) % self.max_chunks
        return copied, number - len(message)
