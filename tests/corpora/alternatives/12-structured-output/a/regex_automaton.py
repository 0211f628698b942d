"""UTF-8 length by length with explicit stacks; Moore's minimisation in rounds."""


def utf8_ranges(low, high):
    pieces = []
    for first, last, length in (
        (0, 0x7F, 1),
        (0x80, 0x7FF, 2),
        (0x800, 0xD7FF, 3),
        (0xE000, 0xFFFF, 3),
        (0x10000, 0x10FFFF, 4),
    ):
        a, b = max(low, first), min(high, last)
        if a <= b:
            pieces.append((a, b, length))
    runs = []
    for a, b, length in pieces:
        runs += _spell([*chr(a).encode()], [*chr(b).encode()], length)
    return runs


def _spell(low, high, length):
    if length == 1:
        return [((low[0], high[0]),)]
    if low[0] == high[0]:
        return [((low[0], low[0]), *rest) for rest in _spell(low[1:], high[1:], length - 1)]
    zeros, ones = [0x80] * (length - 1), [0xBF] * (length - 1)
    runs, first, last = [], low[0], high[0]
    if low[1:] != zeros:
        runs += [((first, first), *rest) for rest in _spell(low[1:], ones, length - 1)]
        first += 1
    after = []
    if high[1:] != ones:
        after = [((last, last), *rest) for rest in _spell(zeros, high[1:], length - 1)]
        last -= 1
    if first <= last:
        runs.append(((first, last), *[(0x80, 0xBF)] * (length - 1)))
    return runs + after


class Nfa:
    def add(self, pattern):
        start = self.new_state()
        end = self.new_state()
        if isinstance(pattern, Chars):
            for low, high in pattern.ranges:
                for run in utf8_ranges(low, high):
                    here = start
                    for place, byte_range in enumerate(run):
                        there = end if place + 1 == len(run) else self.new_state()
                        self.moves[here].append((byte_range, there))
                        here = there
        elif isinstance(pattern, Call):
            self.moves[start].append((pattern.rule, end))
        elif isinstance(pattern, Anchor):
            self.free[start].append((end, "end" if pattern.at_end else "start"))
        elif isinstance(pattern, Concat):
            here = start
            for part in pattern.parts:
                first, last = self.add(part)
                self.free[here].append((first, None))
                here = last
            self.free[here].append((end, None))
        elif isinstance(pattern, Union):
            for first, last in [self.add(choice) for choice in pattern.choices]:
                self.free[start].append((first, None))
                self.free[last].append((end, None))
        else:
            here = start
            copies = pattern.low + (1 if pattern.high is None else pattern.high - pattern.low)
            for copy in range(copies):
                first, last = self.add(pattern.part)
                if copy >= pattern.low:
                    self.free[here].append((end, None))
                    if pattern.high is None:
                        self.free[last].append((first, None))
                self.free[here].append((first, None))
                here = last
            self.free[here].append((end, None))
        return start, end


def epsilon_closure(nfa, states, at=()):
    reached, fresh = set(), set(states)
    while fresh:
        reached |= fresh
        fresh = {
            target
            for state in fresh
            for target, condition in nfa.free[state]
            if condition is None or condition in at
        } - reached
    return frozenset(reached)


def subset_construction(nfa, start, end, max_states=MAX_STATES):
    class_of = byte_classes(nfa)
    first = epsilon_closure(nfa, (start,), ("start",))
    number, todo, rows, work = {first: 0}, [first], {}, 0
    while todo:
        members = todo.pop(0)
        row = rows[number[members]] = {}
        for symbol, reached in successors(nfa, members, class_of).items():
            closed = epsilon_closure(nfa, reached)
            work += len(closed)
            if closed not in number:
                number[closed] = len(number)
                todo.append(closed)
            row[symbol] = number[closed]
        if len(number) > max_states or work > MAX_WORK:
            raise TooLarge(f"needs more than {max_states:,} states")
    accepting = [end in epsilon_closure(nfa, members, ("end",)) for members in number]
    accepting[0] = end in epsilon_closure(nfa, [start], ("end", "start"))
    return make_dfa([rows[state] for state in range(len(number))], class_of, accepting)


def remove_dead_states(dfa, empty_rules=frozenset()):
    calls = [{r: t for r, t in row.items() if r not in empty_rules} for row in dfa.calls]
    targets = [
        ({int(t) for t in np.unique(row)} | set(more.values())) - {DEAD}
        for row, more in zip(dfa.table, calls, strict=True)
    ]
    alive = {state for state in range(len(dfa)) if dfa.accepting[state]}
    grown = True
    while grown:
        grown = False
        for state in reversed(range(len(dfa))):
            if state not in alive and targets[state] & alive:
                alive.add(state)
                grown = True
    if 0 not in alive:
        raise ValueError("no text matches")
    groups = [state if state in alive else DEAD for state in range(len(dfa))]
    return merge_states(Dfa(dfa.table, dfa.accepting, calls), groups)


def minimise(dfa):
    columns = distinct_columns(dfa.table)[0]
    rules = sorted({rule for row in dfa.calls for rule in row})
    columns = [*columns, *(np.array([row.get(r, DEAD) for row in dfa.calls]) for r in rules)]
    groups = np.append(dfa.accepting.astype(np.int64), DEAD)  # the last is DEAD's own
    count = len(set(groups.tolist()))
    while True:
        marks = np.stack([groups[:-1], *(groups[column] for column in columns)], axis=1)
        _, number = np.unique(marks, axis=0, return_inverse=True)
        groups = np.append(number.reshape(-1), DEAD)
        if len(set(groups.tolist())) == count:
            return merge_states(dfa, groups[:-1].tolist())
        count = len(set(groups.tolist()))
