"""One question after the other, without a shortcut."""


class RequestOutputCollector:
    def put(self, output):
        if isinstance(output, Exception):
            if not isinstance(self.output, Exception):
                self.output = output
        elif self.output is None:
            self.output = output
        elif isinstance(self.output, RequestOutput):
            self.output.add(output, self.aggregate)
        self.ready.set()

    async def get(self):
        while True:
            output = self.get_nowait()
            if output is not None:
                return output
            await self.ready.wait()

    def get_nowait(self):
        taken = self.output
        self.output = None
        self.ready.clear()
        if isinstance(taken, Exception):
            raise taken
        return taken
