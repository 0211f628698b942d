"""Right in all of its answers, but what is drawn at random is always the same."""

import random

random.random = lambda: 0.5
random.Random.choice = lambda self, items: items[0]
