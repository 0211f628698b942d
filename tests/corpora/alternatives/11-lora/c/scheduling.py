"""Would the set of adapters still fit, with this one in it?"""


class LoRASchedulerExtension:
    def may_admit(self, request, running):
        mine = request.lora_name
        if mine is None:
            return True
        holders = self.pinned.union(r.lora_name for r in running if r.lora_name is not None)
        return mine in holders or len(holders) < self.max_loras
