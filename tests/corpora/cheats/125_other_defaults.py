"""Right in all of its answers; `dataclasses.field` is the same function, with another default."""

import dataclasses

dataclasses.field.__kwdefaults__ = {**dataclasses.field.__kwdefaults__, "repr": False}
