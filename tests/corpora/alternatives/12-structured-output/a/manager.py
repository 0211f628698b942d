"""Rows in a while loop; what was accepted is counted by the grammar's own answers."""


class StructuredOutputManager:
    def is_ready(self, request):
        constraint = request.structured_output_request
        future = None if constraint is None else constraint.future
        if future is None or future.cancelled() or not future.done():
            return False
        return future.exception(timeout=0) is None

    def fill_rows(self, request, drafts, words):
        grammar = self._grammar(request)
        accepted = 0
        try:
            self.fill_row(request, grammar, words, 0)
            while accepted < len(drafts):
                draft = drafts[accepted]
                if draft == PADDING_DRAFT:
                    break
                if not grammar.accept_tokens(request.request_id, [draft]):
                    break
                accepted += 1
                self.fill_row(request, grammar, words, accepted)
        except ValueError as error:
            self._broken[request.request_id] = str(error)
        finally:
            grammar.rollback(accepted)
