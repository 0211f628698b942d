"""A queue of stacks, and a set of those that were seen."""


class Pushdown:
    def closure(self, stacks):
        machine, seen, kept = self.machine, set(), []
        queue = sorted(set(stacks), reverse=True)
        while queue:
            stack = queue.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if len(seen) > MAX_STACKS:
                raise TooLarge(f"is too ambiguous: more than {MAX_STACKS:,} stacks at once")
            if stack == BOTTOM:
                kept.append(stack)
                continue
            state, below = self._frames[stack]
            if machine.reads[state]:
                kept.append(stack)
            if machine.accepting[state]:
                queue.append(below)
            for first, after in machine.calls[state]:
                if not machine.passing[after]:
                    queue.append(self.push(first, self.push(after, below)))
                else:
                    queue.append(self.push(first, below))
        return tuple(sorted(kept))
