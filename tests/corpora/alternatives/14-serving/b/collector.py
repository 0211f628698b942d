"""Cases by what is in the slot."""


class RequestOutputCollector:
    def put(self, output):
        match (self.output, output):
            case (Exception(), _):
                pass
            case (None, _) | (_, Exception()):
                self.output = output
            case (unread, later):
                unread.add(later, self.aggregate)
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
        if not isinstance(taken, Exception):
            return taken
        raise taken
