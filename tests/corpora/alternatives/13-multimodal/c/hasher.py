"""Every part is written with its length before it, so no border can move; colors as RGBA."""


def hash_image(image, options):
    transparency = image.info.get("transparency")
    parts = [
        image.mode.encode(),
        repr(image.size).encode(),
        bytes(image.getpalette("RGBA") or []) if image.palette else b"none",
        repr(transparency).encode(),
        json.dumps(dict(options), sort_keys=True, default=repr).encode(),
        image.tobytes(),
    ]
    return hashlib.sha256(b"".join(b"%d:" % len(part) + part for part in parts)).hexdigest()
