"""Both queues are dicts by id, each with its own idea of what comes first."""


class FCFSRequestQueue:
    def __init__(self):
        self._queue = {}

    def add_request(self, request):
        self._queue[request.request_id] = request

    def peek_request(self):
        for request in self._queue.values():
            return request
        raise IndexError("nobody waits")

    def pop_request(self):
        request = self.peek_request()
        return self._queue.pop(request.request_id)

    def prepend_request(self, request):
        self._queue = {request.request_id: request, **self._queue}

    def prepend_requests(self, requests):
        for request in list(requests):
            self.prepend_request(request)

    def remove_requests(self, requests):
        for request in requests:
            self._queue.pop(request.request_id, None)

    def __iter__(self):
        return iter(list(self._queue.values()))


class PriorityRequestQueue:
    def __init__(self):
        self._heap = {}

    def add_request(self, request):
        self._heap[request.request_id] = request

    def peek_request(self):
        if not self._heap:
            raise IndexError("nobody waits")
        return min(self._heap.values())

    def pop_request(self):
        return self._heap.pop(self.peek_request().request_id)

    def prepend_request(self, request):
        self._heap.update({request.request_id: request})

    def prepend_requests(self, requests):
        self._heap.update({request.request_id: request for request in requests})

    def remove_requests(self, requests):
        gone = {request.request_id for request in requests}
        self._heap = {name: r for name, r in self._heap.items() if name not in gone}

    def __iter__(self):
        return iter(sorted(self._heap.values()))
