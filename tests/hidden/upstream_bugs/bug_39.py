"""Cameras write broken metadata; the picture is good all the same."""

import inspect
import io
import uuid

from PIL import Image
from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.media import MediaWithBytes
from vllm.multimodal.media.image import ImageMediaIO

POSITIONAL = [
    p
    for p in inspect.signature(MultiModalHasher.hash_kwargs).parameters.values()
    if p.kind is p.POSITIONAL_ONLY
]


def name(**kwargs):
    return MultiModalHasher.hash_kwargs(*(["blake3"] if POSITIONAL else []), **kwargs)


def picture(colour, exif=None):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), colour).save(file, "PNG")
    image = Image.open(io.BytesIO(file.getvalue()))
    image.load()
    if exif:
        image.info["exif"] = exif
    return image, file.getvalue()


def the_bug(draw):
    broken = b"Exif\x00\x00XX*\x00" + bytes(
        draw.randint(0, 255) for _ in range(9)
    )  # neither II nor MM
    colours = [tuple(draw.randint(0, 255) for _ in range(3)) for _ in range(2)]
    names = set()
    for colour in colours:
        image, data = picture(colour, broken)
        try:
            names |= {
                name(image=image),
                name(image=MediaWithBytes(picture(colour, broken)[0], data)),
            }
        except Exception as error:
            raise AssertionError(
                f"{type(error).__name__}: {error}: the client gets a 500 for a good picture"
            ) from None
    assert len(names) == 4, "other pixels, another name"


def neighbour_pictures_without_metadata():
    assert (
        name(image=picture("red")[0])
        == name(image=picture("red")[0])
        != name(image=picture("blue")[0])
    )


def neighbour_an_id_in_the_metadata():
    images = [picture(colour)[0] for colour in ("red", "blue", "red")]
    for image, number in zip(images, (1, 1, 2)):
        image.getexif()[Image.ExifTags.Base.ImageID] = uuid.UUID(int=number)
    names = [name(image=image) for image in images]
    assert names[0] == names[1] != names[2], "the id that a client gave is the name"


def the_sibling(draw):
    """A picture that ends too early is the client's error, as one that is no picture."""
    file = io.BytesIO()
    Image.frombytes("RGB", (40, 40), draw.randbytes(4800)).save(file, "PNG")
    whole = file.getvalue()
    assert ImageMediaIO().load_bytes(whole).media.size == (40, 40)
    for data in (b"no picture", whole[: draw.randint(100, 2000)]):
        try:
            ImageMediaIO().load_bytes(data)
        except ValueError:
            continue
        except Exception as error:
            raise AssertionError(
                f"{len(data)} bytes: {type(error).__name__} is the server's error"
            ) from error
        raise AssertionError(f"{len(data)} bytes are no picture")
