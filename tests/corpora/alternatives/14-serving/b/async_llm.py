"""Reading until the last output by a walrus; slices by an iterator."""


def slices(outputs):
    return [outputs[i : i + OUTPUT_CHUNK] for i in range(0, len(outputs), OUTPUT_CHUNK)]


class AsyncLLM:
    async def add_request(self, request_id, prompt, params, **more):
        await self.check_health()
        arrived = time.monotonic()
        token_ids, images = await self.preprocess(prompt)
        priority, lora = more.get("priority", 0), more.get("lora_request")
        rank = more.get("data_parallel_rank")
        self.limits.check(token_ids)
        self.admission.check(num_reqs=params.n, num_tokens=params.n * len(token_ids))
        self.start()
        stream = self._make_stream(request_id, prompt, token_ids, params)
        requests = self._make_requests(
            stream, prompt, images, params, priority, arrived, lora, rank
        )
        self._watch(stream, requests, params.output_kind)
        list(map(self.client.add_request, requests))
        return stream

    async def outputs(self, stream):
        import contextlib

        with contextlib.ExitStack() as stack:
            stack.callback(lambda: self.close_stream(stream))
            finished = False
            while not finished:
                output = await stream.collector.get()
                finished = output.finished
                yield output

    def _abort_stream(self, stream):
        if stream.live.finished:
            return
        ids = sorted(set(stream.child_ids) & set(self.output_processor.completions))
        for end in (
            self.output_processor.abort,
            self.stats.requests_aborted,
            self.client.abort_requests,
        ):
            end(ids)
        self._deliver(stream)

    async def _handle_outputs(self):
        try:
            while True:
                message = await self.client.get_outputs()
                for number, part in enumerate(slices(message.outputs)):
                    if number and not message.is_late:
                        await asyncio.sleep(0)
                    self._process(part, message)
                self.stats.step_done(message.stats)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if isinstance(error, EngineDeadError):
                return self._fail(error)
            self._fail(EngineGenerateError(f"{error.__class__.__name__}: {error}"))
            raise error

    def _process(self, outputs, message):
        stamp = message.timestamp
        [self.stats.output_arrived(output, stamp) for output in outputs]
        self.output_processor.inbox += outputs
        result = self.output_processor.process()
        if len(result.stop_string_ids):
            self.stats.requests_stopped(result.stop_string_ids)
            self.client.abort_requests(result.stop_string_ids)
        found = (
            self._streams.get(live.request_id) for live in self.output_processor.take_changed()
        )
        for stream in filter(None, list(found)):
            self._deliver(stream)
