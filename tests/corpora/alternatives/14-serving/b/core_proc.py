"""Messages through a table of methods' names; sleeping and draining as two helpers."""


def take_in(self, content):
    name, request = content
    if self.shutdown_state > ShutdownState.RUNNING:
        return self._send_aborted([name])
    try:
        request = decode_request(request) if isinstance(request, bytes) else request
        self.core.add_request(self.core.preprocess_add_request(request))
    except Exception as error:
        self._send_outputs([EngineCoreOutput(name, [], "error", f"{error}")])


def ask_for_an_end(self, seconds):
    self.deadline = min(time.monotonic() + seconds, self.deadline)
    if self.shutdown_state < ShutdownState.REQUESTED:
        self.shutdown_state = ShutdownState.REQUESTED


class EngineCoreProc:
    def _process_input_queue(self):
        asleep = lambda: not (self._has_work() or self.shutdown_state)  # noqa: E731
        while asleep():
            self._call_when_idle()
            message = self.input_queue.get()
            self._handle_message(*message)
        for _ in range(self.input_queue.qsize()):
            message = self.input_queue.get_nowait()
            self._handle_message(*message)

    def _handle_message(self, kind, content):
        table = {
            MessageKind.ADD: lambda: take_in(self, content),
            MessageKind.ABORT: lambda: self.core.abort_requests(content),
            MessageKind.UTILITY: lambda: self._handle_call(content),
            MessageKind.SHUTDOWN: lambda: ask_for_an_end(self, content),
        }
        table[kind]()

    def _handle_shutdown(self):
        state = self.shutdown_state
        if state == ShutdownState.REQUESTED:
            in_time = self.deadline > time.monotonic()
            go_on = in_time and self._has_work() and len(self.core.scheduler.requests) > 0
            if not go_on:
                self._abort_all()
                self.shutdown_state = ShutdownState.SHUTTING_DOWN
        return self.shutdown_state != ShutdownState.SHUTTING_DOWN or self._has_work()
