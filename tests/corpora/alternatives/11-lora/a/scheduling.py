"""The slots that are taken, counted off."""


class LoRASchedulerExtension:
    def may_admit(self, request, running):
        mine = request.lora_name
        if mine is None:
            return True
        taken = set(self.pinned)
        for other in running:
            if other.lora_name:
                taken.add(other.lora_name)
        if mine in taken:
            return True
        return self.max_loras - len(taken) > 0
