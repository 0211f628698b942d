"""Cuts from the right bit by bit; sets numbered as they are met; smaller halves by their size."""


@lru_cache(maxsize=4096)
def utf8_ranges(low, high):
    if low > high:
        return []
    if low <= 0xDFFF and high >= 0xD800:  # around the surrogates
        return [*utf8_ranges(low, 0xD7FF), *utf8_ranges(0xE000, high)]
    for last in (0x7F, 0x7FF, 0xFFFF):
        if low <= last < high:
            return [*utf8_ranges(low, last), *utf8_ranges(last + 1, high)]
    first, final = chr(low).encode(), chr(high).encode()
    for bits in range(6, 6 * len(first), 6):
        tail = (1 << bits) - 1
        if low >> bits == high >> bits:
            break
        if low & tail:
            return [*utf8_ranges(low, low | tail), *utf8_ranges((low | tail) + 1, high)]
        if high & tail != tail:
            return [*utf8_ranges(low, (high & ~tail) - 1), *utf8_ranges(high & ~tail, high)]
    return [tuple(zip(first, final, strict=True))]


def epsilon_closure(nfa, states, at=()):
    found = set(states)
    todo = list(found)
    while todo:
        for target, condition in nfa.free[todo.pop()]:
            if target not in found and (condition is None or condition in at):
                found.add(target)
                todo.append(target)
    return frozenset(found)


def subset_construction(nfa, start, end, max_states=MAX_STATES):
    class_of = byte_classes(nfa)
    numbers = {}
    sets = []
    work = 0

    def number_of(members):
        nonlocal work
        if members not in numbers:
            if len(sets) >= max_states:
                raise TooLarge(f"needs more than {max_states:,} states; shorten it")
            work += len(members)
            if work > MAX_WORK:
                raise TooLarge(f"needs more than {MAX_WORK:,} members of closures; shorten it")
            numbers[members] = len(sets)
            sets.append(members)
        return numbers[members]

    number_of(epsilon_closure(nfa, [start], ("start",)))
    rows, accepting = [], []
    while len(rows) < len(sets):
        members = sets[len(rows)]
        open_here = ("end",) if rows else ("start", "end")
        accepting.append(end in epsilon_closure(nfa, members, open_here))
        row = {}
        for symbol, targets in successors(nfa, members, class_of).items():
            row[symbol] = number_of(epsilon_closure(nfa, targets))
        rows.append(row)
    return make_dfa(rows, class_of, accepting)


def remove_dead_states(dfa, empty_rules=frozenset()):
    before = [set() for _ in range(len(dfa))]
    for state in range(len(dfa)):
        targets = set(dfa.table[state].tolist())
        for rule, after in dfa.calls[state].items():
            if rule not in empty_rules:
                targets.add(after)
        for target in targets:
            if target != DEAD:
                before[target].add(state)
    alive = {state for state in range(len(dfa)) if dfa.accepting[state]}
    todo = list(alive)
    while todo:
        for source in before[todo.pop()]:
            if source not in alive:
                alive.add(source)
                todo.append(source)
    if 0 not in alive:
        raise ValueError("no text matches")
    calls = [
        {rule: after for rule, after in row.items() if rule not in empty_rules} for row in dfa.calls
    ]
    groups = [state if state in alive else DEAD for state in range(len(dfa))]
    return merge_states(Dfa(dfa.table, dfa.accepting, calls), groups)


def minimise(dfa):
    sources_by_symbol = predecessors(dfa)
    yes = {state for state in range(len(dfa)) if dfa.accepting[state]}
    members = [group for group in (yes, set(range(len(dfa))) - yes) if group]
    group_of = [0] * len(dfa)
    for number, group in enumerate(members):
        for state in group:
            group_of[state] = number
    todo = set(range(len(members)))
    while todo:
        splitter = list(members[todo.pop()])
        for sources in sources_by_symbol:
            led = {source for state in splitter for source in sources.get(state, ())}
            hit = {}
            for state in led:
                hit.setdefault(group_of[state], set()).add(state)
            for number, inside in hit.items():
                if len(inside) == len(members[number]):
                    continue
                outside = members[number] - inside
                new = len(members)
                smaller, larger = sorted((inside, outside), key=len)
                members[number] = larger
                members.append(smaller)
                for state in smaller:
                    group_of[state] = new
                todo.add(new)
    return merge_states(dfa, group_of)


class Nfa:
    def add(self, pattern):
        start, end = self.new_state(), self.new_state()
        if isinstance(pattern, Chars):
            for low, high in pattern.ranges:
                for run in utf8_ranges(low, high):
                    self._add_run(start, run, end)
        elif isinstance(pattern, Concat):
            self.join(self._add_in_a_row(start, pattern.parts), end)
        elif isinstance(pattern, Union):
            for choice in pattern.choices:
                first, last = self.add(choice)
                self.join(start, first)
                self.join(last, end)
        elif isinstance(pattern, Call):
            self.moves[start].append((pattern.rule, end))
        elif isinstance(pattern, Anchor):
            self.join(start, end, "end" if pattern.at_end else "start")
        else:
            here = self._add_in_a_row(start, [pattern.part] * pattern.low)
            if pattern.high is None:
                hub = self.new_state()
                self.join(here, hub)
                first, last = self.add(pattern.part)
                self.join(hub, first)
                self.join(last, hub)
                self.join(hub, end)
            else:
                for _ in range(pattern.high - pattern.low):
                    self.join(here, end)
                    here = self._add_in_a_row(here, [pattern.part])
                self.join(here, end)
        return start, end
