"""What is legal is asked first; then rows are filled while the grammar advances."""


class StructuredOutputManager:
    def is_ready(self, request):
        constraint = request.structured_output_request
        if constraint is None or constraint.future is None:
            return False
        future = constraint.future
        finished = future.done() and not future.cancelled()
        return bool(finished and not future.exception())

    def fill_rows(self, request, drafts, words):
        grammar, advanced = self._grammar(request), 0
        for index, draft in enumerate([*drafts, PADDING_DRAFT]):
            try:
                self.fill_row(request, grammar, words, index)
            except ValueError as error:
                self._broken[request.request_id] = str(error)
                break
            if draft == PADDING_DRAFT or not grammar.accept_tokens(request.request_id, [draft]):
                break
            advanced += 1
        grammar.rollback(advanced)
