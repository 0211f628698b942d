"""A flag for the end, a slice counted from its start, and a failure in words of its own."""


class AsyncLLM:
    async def outputs(self, stream):
        try:
            finished = False
            while not finished:
                output = stream.collector.get_nowait()
                if output is None:
                    output = await stream.collector.get()
                finished = output.finished
                yield output
        finally:
            self.close_stream(stream)

    async def add_request(
        self, request_id, prompt, params, *, lora_request=None, priority=0, data_parallel_rank=None
    ):
        await self.check_health()
        arrival_time = time.monotonic()
        token_ids, images = await self.preprocess(prompt)
        self.limits.check(token_ids)
        self.admission.check(params.n, params.n * len(token_ids))
        self.start()
        stream = self._make_stream(request_id, prompt, token_ids, params)
        requests = self._make_requests(
            stream,
            prompt,
            images,
            params,
            priority,
            arrival_time,
            lora_request,
            data_parallel_rank,
        )
        self._watch(stream, requests, params.output_kind)
        for request in requests:
            self.client.add_request(request)
        return stream

    def _abort_stream(self, stream):
        if stream.live.finished:
            return
        unfinished = []
        for child_id in stream.child_ids:
            if child_id in self.output_processor.completions:
                unfinished.append(child_id)
        self.output_processor.abort(unfinished)
        self.stats.requests_aborted(unfinished)
        for child_id in unfinished:
            self.client.abort_requests([child_id])
        self._deliver(stream)

    async def _handle_outputs(self):
        try:
            while True:
                message = await self.client.get_outputs()
                outputs = message.outputs
                for start in range(0, len(outputs), OUTPUT_CHUNK):
                    if start > 0 and not message.is_late:
                        await asyncio.sleep(0)
                    self._process(outputs[start : start + OUTPUT_CHUNK], message)
                self.stats.step_done(message.stats)
        except EngineDeadError as error:
            self._fail(error)
        except Exception as error:
            self._fail(EngineGenerateError(f"the outputs cannot be taken in: {error!r}"))
            raise

    def _process(self, outputs, message):
        for output in outputs:
            self.stats.output_arrived(output, timestamp=message.timestamp)
            self.output_processor.inbox.append(output)
        processed = self.output_processor.process()
        self.stats.requests_stopped(processed.stop_string_ids)
        self.client.abort_requests(processed.stop_string_ids)
        for changed in self.output_processor.take_changed():
            stream = self._streams.get(changed.request_id)
            if stream is not None:
                self._deliver(stream)
