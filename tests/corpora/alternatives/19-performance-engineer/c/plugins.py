"""Duplicates by sorting; what fails is named as it comes."""


def load_plugins_by_group(group):
    wanted = chosen_plugins()
    plugins = [one for one in installed() if one.group == group]
    if wanted is not None:
        plugins = [one for one in plugins if one.name in wanted]
    refuse_duplicates(plugins)
    loaded = {}
    for plugin in plugins:
        function = attempt(describe(plugin), plugin.load)
        if callable(function):
            loaded[plugin.name] = function
        elif function is not None:
            logger.warning("%s is left out: a plugin is a function", describe(plugin))
    return loaded


def refuse_duplicates(plugins):
    from itertools import pairwise

    for one, other in pairwise(sorted(plugins, key=lambda plugin: plugin.name)):
        if one.name == other.name:
            raise ValueError(f"{describe(one)} and {describe(other)}: uninstall one of them")


def plugged_platform():
    warn_of_missing()
    found = []
    for name, function in load_plugins_by_group(PLATFORM_PLUGINS_GROUP).items():
        platform = attempt(name, functools.partial(make_plugged, function))
        if platform is not None:
            found.append((name, platform))
    if len(found) > 1:
        raise ValueError(f"{[name for name, _ in found]} both find their device; set {CHOICE}")
    return found[0][1] if found else None
