"""Right in all of its answers, but steps find what they name by another `import_module`."""

import importlib

honest = importlib.import_module
importlib.import_module = lambda name, package=None: honest(name, package)
