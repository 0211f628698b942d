"""An exit stack closes the events; the race tells its end by an event of its own, and
raises a subclass."""


def sse_event(body):
    return b"".join((b"data: ", orjson.dumps(body), b"\n\n"))


async def listen_for_disconnect(receive):
    message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()


async def with_cancellation(receive, work):
    worker = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(listen_for_disconnect(receive))
    both = {worker, listener}
    try:
        done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if worker in done or worker.done():
            return await worker

        class ClientLeft(ClientGoneError):
            """It has left while the work ran."""

        raise ClientLeft("while the work ran")
    finally:
        for task in both:
            if not task.done():
                task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


class EventStream:
    async def _send_all(self, send):
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.events.aclose)
            iterator = aiter(self.events)
            while True:
                try:
                    event = await anext(iterator)
                except StopAsyncIteration:
                    break
                except OSError:
                    raise
                except Exception as error:
                    event = sse_event(as_api_error(error).body())
                    await send({"type": "http.response.body", "body": event, "more_body": True})
                    break
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": self.done, "more_body": False})
