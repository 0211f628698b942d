"""The names of everybody who holds a slot, without the base."""


class LoRASchedulerExtension:
    def may_admit(self, request, running):
        holders = {other.lora_name for other in running}.union(self.pinned) - {None}
        wanted = holders | {request.lora_name} - {None}
        return wanted == holders or len(wanted) <= self.max_loras
