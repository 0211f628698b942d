"""Round after round: all stacks that one call or return makes of the last round's."""


class Pushdown:
    def closure(self, stacks):
        machine = self.machine

        def one_move(stack):
            if stack == BOTTOM:
                return
            state, below = self._frames[stack]
            if machine.accepting[state]:
                yield below
            for first, after in machine.calls[state]:
                yield self.push(first, below if machine.passing[after] else self.push(after, below))

        found = fresh = frozenset(stacks)
        while fresh:
            fresh = frozenset(new for stack in fresh for new in one_move(stack)) - found
            found |= fresh
            if len(found) > MAX_STACKS:
                raise TooLarge(f"is too ambiguous: more than {MAX_STACKS:,} stacks at once")
        tops = {stack: self._frames[stack][0] for stack in found if stack != BOTTOM}
        readers = {stack for stack, top in tops.items() if machine.reads[top]}
        return tuple(sorted(readers | ({BOTTOM} & found)))
