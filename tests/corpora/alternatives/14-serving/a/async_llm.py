"""Everything that can raise comes first; a flag says whether the end was seen."""


class AsyncLLM:
    async def add_request(
        self,
        request_id,
        prompt,
        params,
        *,
        lora_request=None,
        priority=0,
        data_parallel_rank=None,
    ):
        await self.check_health()
        now = time.monotonic()
        token_ids, images = await self.preprocess(prompt)
        self.limits.check(token_ids)
        self.admission.check(params.n, len(token_ids) * params.n)
        self.start()
        stream = self._make_stream(request_id, prompt, token_ids, params)
        more = priority, now, lora_request, data_parallel_rank
        made = self._make_requests(stream, prompt, images, params, *more)
        self._watch(stream, made, params.output_kind)
        for one in made:
            self.client.add_request(one)
        return stream

    async def outputs(self, stream):
        try:
            while True:
                output = stream.collector.get_nowait()
                if output is None:
                    output = await stream.collector.get()
                is_last = output.finished
                yield output
                if is_last:
                    return
        finally:
            self.close_stream(stream)

    def _abort_stream(self, stream):
        if not stream.live.finished:
            known = self.output_processor.completions
            unfinished = list(filter(known.__contains__, stream.child_ids))
            self.client.abort_requests(unfinished)
            self.stats.requests_aborted(unfinished)
            self.output_processor.abort(unfinished)
            self._deliver(stream)

    async def _handle_outputs(self):
        try:
            while True:
                message = await self.client.get_outputs()
                waiting = list(message.outputs)
                while waiting:
                    now, waiting = waiting[:OUTPUT_CHUNK], waiting[OUTPUT_CHUNK:]
                    self._process(now, message)
                    if waiting and not message.is_late:
                        await asyncio.sleep(0)
                self.stats.step_done(message.stats)
        except EngineDeadError as error:
            self._fail(error)
        except Exception as error:
            self._fail(EngineGenerateError(f"{type(error).__name__}: {error}"))
            raise

    def _process(self, outputs, message):
        for output in outputs:
            self.stats.output_arrived(output, message.timestamp)
            self.output_processor.inbox.append(output)
        stopped = self.output_processor.process().stop_string_ids
        if stopped:
            self.client.abort_requests(stopped)
            self.stats.requests_stopped(stopped)
        for live in self.output_processor.take_changed():
            if live.request_id in self._streams:
                self._deliver(self._streams[live.request_id])
