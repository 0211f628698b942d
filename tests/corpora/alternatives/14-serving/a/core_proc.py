"""One loop that asks each time whether it may sleep."""


class EngineCoreProc:
    def _process_input_queue(self):
        while True:
            has_mail = not self.input_queue.empty()
            may_sleep = self.shutdown_state == ShutdownState.RUNNING and not self._has_work()
            if may_sleep:
                self._call_when_idle()
                kind, content = self.input_queue.get()
            elif has_mail:
                kind, content = self.input_queue.get_nowait()
            else:
                return
            self._handle_message(kind, content)

    def _handle_message(self, kind, content):
        if kind == MessageKind.SHUTDOWN:
            if self.shutdown_state == ShutdownState.RUNNING:
                self.shutdown_state = ShutdownState.REQUESTED
            wanted = time.monotonic() + content
            if wanted < self.deadline:
                self.deadline = wanted
            return
        if kind == MessageKind.UTILITY:
            self._handle_call(content)
            return
        if kind == MessageKind.ABORT:
            self.core.abort_requests(content)
            return
        if kind != MessageKind.ADD:
            return
        request_id, request = content
        if self.shutdown_state != ShutdownState.RUNNING:
            self._send_aborted([request_id])
            return
        try:
            if isinstance(request, bytes):
                request = decode_request(request)
            prepared = self.core.preprocess_add_request(request)
            self.core.add_request(prepared)
        except Exception as problem:
            output = EngineCoreOutput(
                request_id, [], finish_reason="error", stop_reason=str(problem)
            )
            self._send_outputs([output])

    def _handle_shutdown(self):
        if self.shutdown_state == ShutdownState.RUNNING:
            return True
        if self.shutdown_state == ShutdownState.REQUESTED:
            has_time = time.monotonic() < self.deadline
            if has_time and self.core.scheduler.requests and self._has_work():
                return True
            self._abort_all()
            self.shutdown_state = ShutdownState.SHUTTING_DOWN
        return self._has_work()
