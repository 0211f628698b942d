"""The event is cleared before the slot is read; nothing is awaited in between."""


class RequestOutputCollector:
    def put(self, output):
        failed = isinstance(self.output, Exception)
        if not failed:
            is_error = isinstance(output, Exception)
            if self.output is not None and not is_error:
                self.output.add(output, aggregate=self.aggregate)
            else:
                self.output = output
            self.ready.set()

    async def get(self):
        while self.output is None:
            await self.ready.wait()
        return self.get_nowait()

    def get_nowait(self):
        self.ready.clear()
        found = self.output
        if found is None:
            return None
        self.output = None
        if isinstance(found, Exception):
            raise found
        return found
