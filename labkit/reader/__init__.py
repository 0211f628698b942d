"""The reader: chapters beside the upstream source they cite, as static pages that need no network.

`python -m labkit read 03` builds and opens one phase, `python -m labkit book` the whole course.
"""
