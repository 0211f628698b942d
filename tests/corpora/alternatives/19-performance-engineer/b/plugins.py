"""Duplicates by counting; platforms gathered by comprehension."""


def load_plugins_by_group(group):
    chosen = chosen_plugins()

    def is_wanted(plugin):
        return plugin.group == group and (chosen is None or plugin.name in chosen)

    wanted = list(filter(is_wanted, installed()))
    refuse_duplicates(wanted)
    tried = [(one, attempt(f"plugin {describe(one)}", one.load)) for one in wanted]
    for one, function in tried:
        if function is not None and not callable(function):
            logger.warning("plugin %s is left out: it is no function", describe(one))
    return {one.name: function for one, function in tried if callable(function)}


def refuse_duplicates(plugins):
    by_name = {}
    for plugin in plugins:
        by_name.setdefault(plugin.name, []).append(plugin)
    for name, same in by_name.items():
        if len(same) > 1:
            both = ", ".join(map(describe, same))
            raise ValueError(f"{len(same)} plugins are called {name!r}: {both}")


def plugged_platform():
    warn_of_missing()
    functions = load_plugins_by_group(PLATFORM_PLUGINS_GROUP)
    made = {
        name: attempt(f"platform plugin {name!r}", lambda function=function: make_plugged(function))
        for name, function in functions.items()
    }
    there = {name: platform for name, platform in made.items() if platform is not None}
    if len(there) >= 2:
        raise ValueError(f"two platforms: {', '.join(there)}; choose by {CHOICE}")
    return there.popitem()[1] if there else None
