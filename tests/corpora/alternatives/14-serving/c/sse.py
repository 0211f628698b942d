"""The head and the body by a small helper; a loop over what the client says."""


def sse_event(body):
    return b"".join([b"data: ", orjson.dumps(body), b"\n\n"])


async def listen_for_disconnect(receive):
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def with_cancellation(receive, work):
    working = asyncio.create_task(work)
    listening = asyncio.create_task(listen_for_disconnect(receive))
    both = (working, listening)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGoneError
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


class EventStream:
    async def _send_all(self, send):
        async def send_body(data: bytes, more: bool) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            head = {"type": "http.response.start", "status": self.status_code}
            await send({**head, "headers": self.raw_headers})
            try:
                async for event in self.events:
                    await send_body(event, True)
            except OSError:
                raise
            except Exception as error:
                await send_body(sse_event(as_api_error(error).body()), True)
            await send_body(self.done, False)
        finally:
            close = getattr(self.events, "aclose", None)
            if close is not None:
                await close()
