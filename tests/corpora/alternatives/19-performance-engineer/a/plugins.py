"""Loops with a try of their own."""


def load_plugins_by_group(group):
    chosen = chosen_plugins()
    wanted = []
    for plugin in installed():
        if plugin.group == group and (chosen is None or plugin.name in chosen):
            wanted.append(plugin)
    refuse_duplicates(wanted)
    loaded = {}
    for plugin in wanted:
        try:
            function = plugin.load()
        except Exception as error:
            logger.warning("plugin %r is left out: %r", plugin.name, error)
            continue
        if not callable(function):
            logger.warning("plugin %r is left out: %r is no function", plugin.name, function)
            continue
        loaded[plugin.name] = function
    return loaded


def refuse_duplicates(plugins):
    seen = {}
    for plugin in plugins:
        if plugin.name in seen:
            one, two = describe(seen[plugin.name]), describe(plugin)
            raise ValueError(f"{one} and {two} have the same name; uninstall one of them")
        seen[plugin.name] = plugin


def plugged_platform():
    warn_of_missing()
    platforms = []
    for name, function in load_plugins_by_group(PLATFORM_PLUGINS_GROUP).items():
        try:
            platform = make_plugged(function)
        except Exception as error:
            logger.warning("platform plugin %r is left out: %r", name, error)
            platform = None
        if platform is not None:
            platforms.append((name, platform))
    if not platforms:
        return None
    if len(platforms) > 1:
        names = [name for name, _ in platforms]
        raise ValueError(f"{names} each bring a platform; set {CHOICE} to one of them")
    return platforms[0][1]
