"""Cuts by divisors, Hopcroft with a work list of (group, symbol), sets as sorted tuples."""


def utf8_ranges(low, high):
    todo, runs = [(low, high)], []
    borders = (0x80, 0x800, 0xD800, 0xE000, 0x10000)
    while todo:
        a, b = todo.pop()
        if a > b or (a >= 0xD800 and b < 0xE000):
            continue
        border = next((c for c in borders if a < c <= b), None)
        if border is not None:
            todo += [(border, b), (a, border - 1)]
            continue
        size, cut = len(chr(a).encode()), None
        for power in range(1, size):
            block = 64**power
            if a // block == b // block:
                continue
            if a % block:
                cut = (a // block + 1) * block
            elif (b + 1) % block:
                cut = b // block * block
            if cut is not None:
                break
        if cut is not None:
            todo += [(cut, b), (a, cut - 1)]
            continue
        runs.append(tuple((x, y) for x, y in zip(chr(a).encode(), chr(b).encode(), strict=True)))
    return runs


class Nfa:
    def add(self, pattern):
        def between(begin, finish, part):
            """Whatever `part` matches leads from `begin` to `finish`."""
            first, last = self.add(part)
            self.join(begin, first)
            self.join(last, finish)

        start, end = self.new_state(), self.new_state()
        match pattern:
            case Chars(ranges):
                for run in (run for low, high in ranges for run in utf8_ranges(low, high)):
                    states = [start, *(self.new_state() for _ in run[1:]), end]
                    for here, there, byte_range in zip(states, states[1:], run, strict=False):
                        self.moves[here].append((byte_range, there))
            case Call(rule):
                self.moves[start].append((rule, end))
            case Anchor(at_end):
                self.join(start, end, ("start", "end")[bool(at_end)])
            case Union(choices):
                for choice in choices:
                    between(start, end, choice)
            case Concat(parts):
                places = [self.new_state() for _ in range(len(parts) + 1)]
                for index, part in enumerate(parts):
                    between(places[index], places[index + 1], part)
                self.join(start, places[0])
                self.join(places[-1], end)
            case Repeat(part, low, None):
                places = [self.new_state() for _ in range(low + 1)]
                for index in range(low):
                    between(places[index], places[index + 1], part)
                between(places[-1], places[-1], part)
                self.join(start, places[0])
                self.join(places[-1], end)
            case Repeat(part, low, high):
                places = [self.new_state() for _ in range(high + 1)]
                for index in range(high):
                    between(places[index], places[index + 1], part)
                self.join(start, places[0])
                for index in range(low, high + 1):
                    self.join(places[index], end)
        return start, end


def epsilon_closure(nfa, states, at=()):
    open_moves = {None, *at}
    reached, queue = [], list(states)
    known = set(queue)
    while queue:
        state = queue.pop(0)
        reached.append(state)
        for target, condition in nfa.free[state]:
            if condition in open_moves and target not in known:
                known.add(target)
                queue.append(target)
    return frozenset(known)


def subset_construction(nfa, start, end, max_states=MAX_STATES):
    class_of = byte_classes(nfa)
    numbers, order, rows, total = {}, [], [], 0

    def number_of(members):
        nonlocal total
        total += len(members)
        if members not in numbers:
            numbers[members] = len(order)
            order.append(members)
        if len(order) > max_states or total > MAX_WORK:
            raise TooLarge(f"needs more than {max_states:,} states; shorten its counted repeats")
        return numbers[members]

    number_of(epsilon_closure(nfa, [start], ("start",)))
    for members in order:  # it grows
        moves = successors(nfa, members, class_of)
        rows.append({s: number_of(epsilon_closure(nfa, moves[s])) for s in moves})
    ends = [epsilon_closure(nfa, members, ("end",)) for members in order]
    ends[0] = epsilon_closure(nfa, [start], ("start", "end"))
    return make_dfa(rows, class_of, [end in members for members in ends])


def remove_dead_states(dfa, empty_rules=frozenset()):
    size = len(dfa)
    calls = [dict(row) for row in dfa.calls]
    for row in calls:
        for rule in set(row) & set(empty_rules):
            row.pop(rule)
    alive = np.append(dfa.accepting.copy(), False)  # the last is DEAD's own
    while True:
        now = alive.copy()
        now[:size] |= alive[dfa.table].any(axis=1)
        for state, row in enumerate(calls):
            now[state] |= any(alive[target] for target in row.values())
        if (now == alive).all():
            break
        alive = now
    if not alive[0]:
        raise ValueError("no text matches")
    groups = [state if alive[state] else DEAD for state in range(size)]
    return merge_states(Dfa(dfa.table, dfa.accepting, calls), groups)


def minimise(dfa):
    sources = predecessors(dfa)
    group_of = [int(flag) for flag in dfa.accepting]
    members = {g: {s for s, group in enumerate(group_of) if group == g} for g in (0, 1)}
    todo = [(g, symbol) for g in members for symbol in range(len(sources))]
    while todo:
        group, symbol = todo.pop()
        led = {s for target in members[group] for s in sources[symbol].get(target, ())}
        for other in {group_of[s] for s in led}:
            inside = members[other] & led
            outside = members[other] - inside
            if not outside:
                continue
            new = len(members)
            members[other], members[new] = outside, inside
            for state in inside:
                group_of[state] = new
            for each in range(len(sources)):
                todo += [(new, each), (other, each)]
    return merge_states(dfa, group_of)
