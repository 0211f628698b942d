"""Messages in lists; what is missing is counted."""


class PipelineStage:
    def receive(self, num_tokens):
        coming = []
        if not self.group.is_first_rank:
            for _ in ("hidden", "residual"):
                box = torch.zeros(num_tokens, self.hidden_size, dtype=self.dtype).to(self.device)
                coming.append((box, self.group.irecv(box, self.group.rank_in_group - 1)))
        for _, message in coming:
            message.wait()
        boxes = [box for box, _ in coming]
        return {"intermediate": IntermediateTensors(*boxes)} if boxes else {}

    def hand_on(self, result):
        if not isinstance(result, IntermediateTensors):
            return result
        for message, _tensor in reversed(self._leaving):
            message.wait()
        self._leaving = []
        whole = result.hidden_states.contiguous(), result.residual.contiguous()
        for tensor in whole:
            message = self.group.isend(tensor, self.group.rank_in_group + 1)
            self._leaving.append((message, tensor))


def missing_tokens(num_known, num_computed, new_token_ids):
    total = num_computed + len(new_token_ids)
    count = min(max(total - num_known, 0), len(new_token_ids))
    return list(new_token_ids[len(new_token_ids) - count :])
