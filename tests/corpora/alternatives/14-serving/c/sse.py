"""The head and the body by a small helper; a listener that cancels the work itself."""


def sse_event(body):
    return b"".join([b"data: ", orjson.dumps(body), b"\n\n"])


async def listen_for_disconnect(receive):
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def with_cancellation(receive, work):
    working = asyncio.create_task(work)
    has_left = False

    async def listen():
        nonlocal has_left
        await listen_for_disconnect(receive)
        has_left = working.cancel()  # False if it has ended

    listening = asyncio.create_task(listen())
    try:
        await asyncio.wait([working])
    finally:
        working.cancel()
        listening.cancel()
        await asyncio.gather(working, listening, return_exceptions=True)
    if has_left:
        raise ClientGoneError("the client has closed its connection")
    return working.result()


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
