"""Plain lists: one turned round, so that the front is its end; one kept sorted."""


class FCFSRequestQueue:
    def __init__(self):
        self._queue = []

    def add_request(self, request):
        self._queue.insert(0, request)

    def peek_request(self):
        return self._queue[-1]

    def pop_request(self):
        return self._queue.pop()

    def prepend_request(self, request):
        self._queue.append(request)

    def prepend_requests(self, requests):
        self._queue.extend(list(requests))

    def remove_requests(self, requests):
        names = {request.request_id for request in requests}
        self._queue = [r for r in self._queue if r.request_id not in names]

    def __iter__(self):
        return reversed(self._queue)


class PriorityRequestQueue:
    def add_request(self, request):
        from bisect import insort

        insort(self._heap, request)

    def pop_request(self):
        return self._heap.pop(0)

    def prepend_request(self, request):
        PriorityRequestQueue.add_request(self, request)

    def prepend_requests(self, requests):
        self._heap = sorted([*self._heap, *requests])

    def remove_requests(self, requests):
        for request in list(requests):
            if request in self._heap:
                self._heap.remove(request)

    def __iter__(self):
        yield from list(self._heap)
