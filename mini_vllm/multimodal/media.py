"""Images by URL: data URLs, allowed hosts, and files in an allowed folder.

A client could make the server send requests into its own network. So URLs are fetched from listed
hosts only, and redirects are not followed, because they could lead to other hosts.

Source: vllm/multimodal/media/connector.py#L74-L399 (MediaConnector) @ v0.22.1
"""

from __future__ import annotations

import base64
import io
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from mini_vllm.errors import show

if TYPE_CHECKING:
    from PIL import Image

MAX_BYTES = 32 * 2**20
"""Most bytes of an encoded image."""
FETCH_SECONDS = 5.0


@dataclass(frozen=True)
class MediaURL:
    """An image that is not loaded yet."""

    url: Any

    def load(
        self, index: int, allowed_domains: Sequence[str], allowed_folder: str = ""
    ) -> Image.Image:
        """Load the image.

        Args:
            index: of the image in its prompt, for error messages.
            allowed_domains: hosts to fetch from.
            allowed_folder: folder whose files may be read; "": none.

        Raises:
            ValueError: if it cannot be read, or is not allowed.
        """
        if not isinstance(self.url, str):
            raise ValueError(
                f'image {index}: image_url is {show(self.url)}; it must be {{"url": "data:..."}}'
            )
        scheme = self.url.partition(":")[0].lower()
        if scheme == "data":
            data = _decode(index, self.url)
        elif scheme == "file":
            data = _read(index, self.url, allowed_folder)
        else:
            data = _fetch(index, self.url, allowed_domains)
        from mini_vllm.multimodal.pictures import Image, UnidentifiedImageError

        try:
            return Image.open(io.BytesIO(data))
        except UnidentifiedImageError:  # its message has the address of an object
            raise ValueError(
                f"image {index} cannot be decoded: its {len(data)} bytes begin with "
                f"{show(data[:8])}, which is no format of pictures that can be read; send a PNG, "
                "JPEG, WebP or GIF"
            ) from None
        except Exception as error:  # a decoder may raise anything
            raise ValueError(f"image {index} cannot be decoded: {error}") from error


def _decode(index: int, url: str) -> bytes:
    """The bytes of ``data:image/png;base64,...``. As in a browser, case, white space and missing
    padding are ignored, and characters may be escaped (``%2B``). URL-safe base64, with - and _ for
    + and /, is accepted, too.

    Source: https://fetch.spec.whatwg.org/#data-url-processor
    """
    head, comma, text = url.partition(",")
    if not comma or not head.rstrip().lower().endswith(";base64"):
        raise ValueError(
            f"image {index}: the data URL begins with {show(head)}; it must be "
            "data:image/png;base64,... (or jpeg, webp, ...)"
        )
    if len(text) * 3 // 4 > MAX_BYTES:
        raise ValueError(
            f"image {index} has about {len(text) * 3 // 4} bytes; at most {MAX_BYTES} are "
            "accepted; send a smaller one"
        )
    text = "".join((unquote(text) if "%" in text else text).split())
    text = text.replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError as error:  # binascii.Error, or for a character that is not ASCII
        raise ValueError(f"image {index} cannot be decoded: broken base64: {error}") from None


def _read(index: int, url: str, folder: str) -> bytes:
    """The bytes of a local file, if it is in the folder after following links.

    Source: vllm/multimodal/media/connector.py#L252-L272 (MediaConnector._load_file_url) @ v0.22.1
    """
    if not folder:
        raise ValueError(
            f"image {index}: the engine reads no files; start it with --allowed-local-media-path "
            "FOLDER, or pass a data URL or a PIL image"
        )
    parts = urlsplit(url)
    try:
        file = Path(url2pathname(parts.netloc + parts.path)).resolve()
        if not file.is_relative_to(Path(folder).resolve()):
            raise ValueError(
                f"image {index}: {show(url)} is not in {folder!r} (--allowed-local-media-path)"
            )
        if (size := file.stat().st_size) > MAX_BYTES:
            raise ValueError(f"image {index} has {size} bytes; at most {MAX_BYTES} are accepted")
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"image {index}: {show(url)} cannot be read: {error.strerror}") from error


def _fetch(index: int, url: str, allowed_domains: Sequence[str]) -> bytes:
    """The bytes at a web address.

    Source: vllm/multimodal/media/connector.py#L274-L283
    (MediaConnector._assert_url_in_allowed_media_domains) @ v0.22.1. Difference: there an empty
    list allows every site.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"image {index}: {show(url)} is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ValueError(
            f"image {index}: the URL {show(url)} cannot be used; pass a data URL or a PIL image"
        )
    if parts.hostname not in allowed_domains:
        raise ValueError(
            f"image {index}: the engine fetches nothing from {parts.hostname!r}; allowed are "
            f"{', '.join(allowed_domains) or 'no sites'} (--allowed-media-domains); pass a data "
            "URL or a PIL image"
        )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(url, timeout=FETCH_SECONDS) as answer:
            data: bytes = answer.read(MAX_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        raise ValueError(f"image {index} cannot be fetched from {show(url)}: {error}") from error
    if len(data) > MAX_BYTES:
        raise ValueError(f"image {index} at {show(url)} has more than {MAX_BYTES} bytes")
    return data


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None
