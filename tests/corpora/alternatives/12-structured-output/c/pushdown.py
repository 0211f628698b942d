"""A list of stacks still to be followed."""


class Pushdown:
    def closure(self, stacks):
        seen = set(stacks)
        todo = list(seen)
        while todo:
            if len(seen) > MAX_STACKS:
                raise TooLarge(
                    f"needs more than {MAX_STACKS:,} stacks at once; it is too ambiguous"
                )
            stack = todo.pop()
            if stack == BOTTOM:
                continue
            state, below = self._frames[stack]
            reached = []
            if self.machine.accepting[state]:
                reached.append(below)
            for first, after in self.machine.calls[state]:
                rest = below if self.machine.passing[after] else self.push(after, below)
                reached.append(self.push(first, rest))
            for other in reached:
                if other not in seen:
                    seen.add(other)
                    todo.append(other)
        return tuple(
            sorted(s for s in seen if s == BOTTOM or self.machine.reads[self._frames[s][0]])
        )
