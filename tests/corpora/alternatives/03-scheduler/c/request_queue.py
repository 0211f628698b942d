"""Numbers as tickets: the front of the line gets ever smaller ones; the heap deletes lazily."""


class FCFSRequestQueue:
    def __init__(self):
        self._queue = []
        self._first, self._last = 0, 0

    def add_request(self, request):
        self._last += 1
        self._queue.append((self._last, request))

    def peek_request(self):
        return min(self._queue, key=lambda entry: entry[0])[1]

    def pop_request(self):
        if not self._queue:
            raise IndexError("the line is empty")
        entry = min(self._queue, key=lambda entry: entry[0])
        self._queue.remove(entry)
        return entry[1]

    def prepend_request(self, request):
        self._first -= 1
        self._queue.append((self._first, request))

    def prepend_requests(self, requests):
        for request in tuple(requests):
            self.prepend_request(request)

    def remove_requests(self, requests):
        leaving = [id(request) for request in requests]
        self._queue = [entry for entry in self._queue if id(entry[1]) not in leaving]

    def __iter__(self):
        return (request for _, request in sorted(self._queue, key=lambda entry: entry[0]))


class PriorityRequestQueue:
    def add_request(self, request):
        self._heap.append(request)
        index = len(self._heap) - 1
        while index and self._heap[index] < self._heap[(index - 1) // 2]:
            parent = (index - 1) // 2
            self._heap[index], self._heap[parent] = self._heap[parent], self._heap[index]
            index = parent

    def pop_request(self):
        first = self._heap[0]
        rest = self._heap[1:]
        self._heap = []
        for request in rest:
            self.add_request(request)
        return first

    def prepend_request(self, request):
        self.add_request(request)

    def prepend_requests(self, requests):
        for request in sorted(requests):
            heapq.heappush(self._heap, request)

    def remove_requests(self, requests):
        leaving = list(requests)
        staying, self._heap = self._heap, []
        for request in staying:
            if not any(request is other for other in leaving):
                self.add_request(request)

    def __iter__(self):
        heap = list(self._heap)
        heapq.heapify(heap)
        while heap:
            yield heapq.heappop(heap)
