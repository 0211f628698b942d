"""A match over the kinds of message; what is no request is bytes; an end takes one more turn."""


class EngineCoreProc:
    def _process_input_queue(self):
        def is_idle() -> bool:
            return not self._has_work() and self.shutdown_state == ShutdownState.RUNNING

        while is_idle():
            self._call_when_idle()
            kind, content = self.input_queue.get()
            self._handle_message(kind, content)
        while True:
            try:
                kind, content = self.input_queue.get_nowait()
            except queue.Empty:
                return
            self._handle_message(kind, content)

    def _handle_message(self, kind, content):
        match kind:
            case MessageKind.ADD:
                request_id, payload = content
                if self.shutdown_state != ShutdownState.RUNNING:
                    self._send_aborted([request_id])
                    return
                try:
                    from mini_vllm.core.engine_request import EngineCoreRequest

                    if not isinstance(payload, EngineCoreRequest):
                        payload = decode_request(payload)
                    self.core.add_request(self.core.preprocess_add_request(payload))
                except Exception as error:
                    failed = EngineCoreOutput(
                        request_id, new_token_ids=[], finish_reason="error", stop_reason=str(error)
                    )
                    self._send_outputs([failed])
            case MessageKind.ABORT:
                self.core.abort_requests(content)
            case MessageKind.UTILITY:
                self._handle_call(content)
            case MessageKind.SHUTDOWN:
                if self.shutdown_state == ShutdownState.RUNNING:
                    self.shutdown_state = ShutdownState.REQUESTED
                deadline = time.monotonic() + content
                if deadline < self.deadline:
                    self.deadline = deadline

    def _handle_shutdown(self):
        if self.shutdown_state == ShutdownState.REQUESTED:
            somebody = bool(self.core.scheduler.requests)
            if somebody and self._has_work() and time.monotonic() < self.deadline:
                return True
            self._abort_all()
            self.shutdown_state = ShutdownState.SHUTTING_DOWN
            return True
        if self.shutdown_state == ShutdownState.SHUTTING_DOWN:
            return self._has_work()
        return True
