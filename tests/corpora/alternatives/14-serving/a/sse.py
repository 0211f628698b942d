"""The standard library's JSON; the race by done callbacks' own wait."""


def sse_event(body):
    import json

    return f"data: {json.dumps(in_json(body), ensure_ascii=False)}\n\n".encode()


def in_json(value):
    """NaN and the infinities are null: JSON has no such numbers."""
    if isinstance(value, dict):
        return {key: in_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [in_json(inner) for inner in value]
    return None if isinstance(value, float) and value - value != 0.0 else value


async def listen_for_disconnect(receive):
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def with_cancellation(receive, work):
    tasks = [asyncio.create_task(work), asyncio.create_task(listen_for_disconnect(receive))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientGoneError
        return tasks[0].result()
    finally:
        tasks[0].cancel()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EventStream:
    async def _send_all(self, send):
        async def body(data, more):
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        problem = None
        try:
            async for event in self.events:
                await body(event, True)
        except OSError:
            raise
        except Exception as error:
            problem = as_api_error(error)
        finally:
            await self.events.aclose()
        if problem is not None:
            await body(sse_event(problem.body()), True)
        await body(self.done, False)
