"""A hash of two hashes: of what is said about the picture, and of its pixels."""


def hash_image(image, options):
    said = [image.mode, list(image.size), image.getpalette(), str(image.info.get("transparency"))]
    texts = {key: json.dumps(value, sort_keys=True, default=str) for key, value in options.items()}
    said.append(sorted(texts.items()))
    about = hashlib.sha256(json.dumps(said).encode()).digest()
    pixels = hashlib.sha256(image.tobytes()).digest()
    return hashlib.sha256(about + pixels).hexdigest()
