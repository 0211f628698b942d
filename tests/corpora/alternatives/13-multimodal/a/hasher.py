"""Part by part, each behind its name and length."""


def hash_image(image, options):
    digest = hashlib.sha256()
    options = json.dumps(options, sort_keys=True, default=repr)
    for name, part in (
        ("mode", image.mode),
        ("size", f"{image.width}x{image.height}"),
        ("palette", repr(image.getpalette())),
        ("options", options),
        ("transparency", repr(image.info.get("transparency"))),
    ):
        digest.update(f"{name}:{len(part)}:{part};".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()
