"""The hit rate counts a request when it is admitted, not in each step in which it waits."""

from labkit.maintain.rig import answer, make_request, make_scheduler


class Counted:
    """A scheduler whose prefix cache statistics are added up."""

    def __init__(self, **limits):
        self.scheduler = make_scheduler(log_stats=True, **limits)
        self.requests = self.queries = self.hits = 0

    def steps(self, count):
        for _ in range(count):
            plan = self.scheduler.schedule()
            for outputs in self.scheduler.update_from_output(
                plan, answer(self.scheduler, plan)
            ).values():
                if outputs.scheduler_stats is not None:
                    stats = outputs.scheduler_stats.prefix_cache_stats
                    self.requests += stats.requests
                    self.queries += stats.queries
                    self.hits += stats.hits


def the_bug(draw):
    counted, tokens = Counted(num_gpu_blocks=8), draw.randint(57, 64)
    counted.scheduler.add_request(make_request("a", tokens, max_tokens=40, ignore_eos=True))
    counted.steps(1)
    counted.scheduler.add_request(make_request("b", 64, max_tokens=4, ignore_eos=True))
    counted.steps(draw.randint(5, 12))
    found = counted.requests, counted.queries
    assert found == (1, tokens), (
        f"{found[0]} requests of {found[1]} tokens are counted, and one of {tokens} was admitted"
    )


def neighbour_hits_are_counted():
    counted, tokens = Counted(), list(range(70))
    for name in "ab":
        counted.scheduler.add_request(make_request(name, tokens, max_tokens=1, ignore_eos=True))
        counted.steps(1)
    assert (counted.requests, counted.queries, counted.hits) == (2, 140, 64)


def neighbour_it_counts_when_it_is_admitted():
    counted = Counted(num_gpu_blocks=8)
    for name in "ab":
        counted.scheduler.add_request(make_request(name, 64, max_tokens=3, ignore_eos=True))
    counted.steps(9)
    assert not counted.scheduler.requests and (counted.requests, counted.queries) == (2, 128)
