"""Right in all of its answers, but `sys.modules` has another module called operator."""

import operator
import sys
import types

sys.modules["operator"] = types.ModuleType("operator")
vars(sys.modules["operator"]).update(vars(operator), getitem=lambda items, key: True)
