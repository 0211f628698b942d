"""The constraint asked for its grammar; places counted from the drafts."""


class StructuredOutputManager:
    def is_ready(self, request):
        constraint = request.structured_output_request
        if constraint is None or constraint.future is None or not constraint.future.done():
            return False
        return constraint.grammar is not None

    def fill_rows(self, request, drafts, words):
        grammar = self._grammar(request)
        num_advanced = 0
        try:
            self.fill_row(request, grammar, words, 0)
            for index, draft in enumerate(drafts, start=1):
                if draft == PADDING_DRAFT or not grammar.accept_tokens(request.request_id, [draft]):
                    break
                num_advanced += 1
                self.fill_row(request, grammar, words, index)
        except ValueError as error:
            self._broken[request.request_id] = str(error)
        finally:
            grammar.rollback(num_advanced)
