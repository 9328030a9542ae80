"""Image decoding and the pixel operations of augmentation; every function gives identical bits on every machine.

JPEG files are decoded by libjpeg-turbo (simplejpeg) with its accurate DCT and smooth upsampling, which gives the
pixels of TensorFlow's `INTEGER_ACCURATE` bit for bit; Pillow decodes everything else. uint8 images are enlarged and
mirrored by OpenCV and downscaled by Pillow, both in integer arithmetic. All of them release the GIL. An image is
(height, width, channels), uint8 or float32. A file that can't be read is a ValueError that says why.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image

from runner.data.base import Array

Pixels = npt.NDArray[np.uint8]
# left, top, right, bottom
Box = tuple[int, int, int, int]

# Pillow's mode for an image file, by channels.
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# Pillow's mode for pixels in memory. RGBA is missing because Pillow would multiply the colors by alpha.
_RAW_MODES = {1: "L", 3: "RGB"}
# Pillow guesses a file's format by its content, and others start programs: an EPS file with any name Ghostscript.
_FORMATS = ("JPEG", "PNG", "BMP", "DIB", "GIF", "WEBP", "TIFF", "PPM")
_GRAY_MODES = ("1", "L", "LA", "La")
# Modes of more than 8 bits.
_WIDE_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")
# EXIF tag, and the orientations that swap height and width, flip vertically and flip horizontally.
_ORIENTATION = 0x0112
_TRANSPOSED = (5, 6, 7, 8)
_FLIPPED_VERTICALLY = (3, 4, 7, 8)
_FLIPPED_HORIZONTALLY = (2, 3, 6, 7)
# OpenCV's fast paths exist for up to four channels.
_OPENCV_CHANNELS = 4
# How an EXIF segment of a JPEG file begins, and within how many bytes it does: few segments of 64 KiB may precede it.
_EXIF = b"Exif\0\0"
_EXIF_WITHIN = 1 << 18

# OpenCV must not start threads of its own, because our workers already use every core.
cv2.setNumThreads(0)


@dataclass(frozen=True)
class Header:
    """Size in pixels after the EXIF orientation, and whether the image has no colors."""

    height: int
    width: int
    gray: bool


def read_header(data: bytes) -> Header:
    """Reads an image file's header."""
    try:
        with _open(data) as image:
            _check_bits(image)
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in _TRANSPOSED:
                height, width = image.size
            return Header(height, width, image.mode in _GRAY_MODES)
    # Pillow's plugins raise errors of any type, such as SyntaxError and struct.error.
    except Exception as error:
        raise ValueError(_reason(error)) from error


def _open(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data), formats=_FORMATS)


def _check_bits(image: Image.Image) -> None:
    """Rejects pixels of more than 8 bits, whose files don't all say which value is white."""
    # Pillow has no modes for colors of 16 bits: it reads their upper bytes.
    is_wide = any(";16" in str(tile.args) for tile in getattr(image, "tile", ()))
    if is_wide or image.mode in _WIDE_MODES:
        raise ValueError("its pixels have more than 8 bits; save it with 8, or read the values with dataset=arrays")


def decode(data: bytes, channels: int) -> Pixels:
    """Decodes an image file and applies its EXIF orientation: uint8 (height, width, channels).

    Of an animation it is the first image. With 1 or 3 channels, alpha is dropped.
    """
    is_jpeg = data[:2] == b"\xff\xd8"
    pixels = None
    if is_jpeg and channels != 4:
        pixels = _decode_jpeg(data, channels)
    if pixels is None:
        pixels = _decode_with_pillow(data, channels)
    return pixels


def _decode_jpeg(data: bytes, channels: int) -> Pixels | None:
    """Decodes a JPEG file; None if only Pillow may succeed: CMYK, or errors that Pillow tolerates."""
    try:
        if simplejpeg.decode_jpeg_header(data)[2] in ("CMYK", "YCCK"):
            return None
        space = "RGB"
        if channels == 1:
            space = "GRAY"
        pixels: Pixels = simplejpeg.decode_jpeg(data, space, fastdct=False, fastupsample=False)
    except ValueError:
        return None
    # Pillow parses EXIF slowly, so it does so only for files that may have any, in a segment near the beginning.
    if data.find(_EXIF, 0, _EXIF_WITHIN) < 0:
        return pixels
    with _open(data) as image:
        return np.ascontiguousarray(_oriented(pixels, image.getexif().get(_ORIENTATION, 1)))


def _decode_with_pillow(data: bytes, channels: int) -> Pixels:
    try:
        with _open(data) as image:
            _check_bits(image)
            orientation = image.getexif().get(_ORIENTATION, 1)
            pixels = np.asarray(image.convert(_MODES[channels]))
    # Pillow's plugins raise errors of any type, see `read_header`.
    except Exception as error:
        raise ValueError(_reason(error)) from error
    return np.ascontiguousarray(_oriented(pixels.reshape(*pixels.shape[:2], channels), orientation))


def _oriented(pixels: Pixels, orientation: int) -> Pixels:
    if orientation in _TRANSPOSED:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in _FLIPPED_VERTICALLY:
        pixels = pixels[::-1]
    if orientation in _FLIPPED_HORIZONTALLY:
        pixels = pixels[:, ::-1]
    return pixels


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "cannot identify" in text:
        return "unknown image format"
    return text or type(error).__name__


def resize(image: Array, size: tuple[int, int]) -> Array:
    """Resizes an image, bilinear and antialiased.

    The filter is as wide as an output pixel when downscaling and as an input pixel when enlarging. When enlarging,
    antialiasing changes nothing, and for uint8 OpenCV needs a quarter of Pillow's time. The two differ by at most 2 of
    255, but which one runs depends on the dtype and the sizes only.
    """
    height, width, channels = image.shape
    if (height, width) == size:
        return image
    is_enlarged = height <= size[0] and width <= size[1]
    if image.dtype == np.uint8 and is_enlarged and channels <= _OPENCV_CHANNELS:
        larger: Array = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR_EXACT)
        return larger.reshape(*size, channels)
    bands = []
    for band in _as_pillow(image):
        bands.append(np.asarray(band.resize(size[::-1], Image.Resampling.BILINEAR)))
    return np.dstack(bands)


def resize_nearest(image: Array, size: tuple[int, int]) -> Array:
    """Resizes a mask: each pixel is the one at its center, so that no numbers are blended."""
    # The center of pixel i is at (i + 1/2) * old size / new size, as in `resize`; in integers, which are exact.
    rows = (2 * np.arange(size[0]) + 1) * image.shape[0] // (2 * size[0])
    columns = (2 * np.arange(size[1]) + 1) * image.shape[1] // (2 * size[1])
    resized: Array = image[rows[:, None], columns]
    return resized


def flip(image: Array, *, vertical: bool = False) -> Array:
    """Flips an image horizontally (left to right), or vertically."""
    if vertical:
        return image[::-1]
    # NumPy copies an array with a negative stride of three bytes slowly, so OpenCV flips uint8.
    if image.dtype == np.uint8 and image.shape[2] <= _OPENCV_CHANNELS:
        flipped: Array = cv2.flip(image, 1)
        return flipped.reshape(image.shape)
    return image[:, ::-1]


def crop(image: Array, top: int, left: int, size: tuple[int, int], outside: int = 0) -> Array:
    """Cuts out a window, which may begin at negative rows and columns and end past the image."""
    height, width = image.shape[:2]
    bottom = top + size[0]
    right = left + size[1]
    if top >= 0 and left >= 0 and bottom <= height and right <= width:
        return image[top:bottom, left:right]
    window = np.full((*size, image.shape[2]), outside, image.dtype)
    rows = slice(max(top, 0), min(bottom, height))
    columns = slice(max(left, 0), min(right, width))
    if rows.start < rows.stop and columns.start < columns.stop:
        window[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = image[rows, columns]
    return window


def center_box(height: int, width: int, size: tuple[int, int], share: float) -> Box:
    """Returns the largest centered window with the aspect ratio of `size`, scaled."""
    scale = min(height / size[0], width / size[1]) * share
    window_height = max(1, round(size[0] * scale))
    window_width = max(1, round(size[1] * scale))
    top = (height - window_height) // 2
    left = (width - window_width) // 2
    return left, top, left + window_width, top + window_height


def color(image: Pixels, brightness: float, contrast: float, saturation: float, hue: float) -> Pixels:
    """Changes a uint8 image (H, W, 1 or 3): three factors, of which 1 changes nothing, and a turn of the hue.

    Contrast is around the mean gray value, saturation around each pixel's. Saturation and hue leave one channel as it
    is. The hue is a fraction of the color circle.
    """
    (pillow,) = _as_pillow(image)
    if brightness != 1:
        black = Image.new(pillow.mode, pillow.size)
        pillow = Image.blend(black, pillow, brightness)
    if contrast != 1:
        histogram = pillow.convert("L").histogram()
        total = sum(value * count for value, count in enumerate(histogram))
        mean = math.floor(total / sum(histogram) + 0.5)
        gray = Image.new("L", pillow.size, mean).convert(pillow.mode)
        pillow = Image.blend(gray, pillow, contrast)
    if pillow.mode == "RGB":
        if saturation != 1:
            gray = pillow.convert("L").convert("RGB")
            pillow = Image.blend(gray, pillow, saturation)
        # Pillow's HSV has a hue of one byte per turn.
        shift = round(hue * 256) % 256
        if shift:
            hue_band, *other_bands = pillow.convert("HSV").split()
            shifted = hue_band.point(lambda value: (value + shift) % 256)
            pillow = Image.merge("HSV", (shifted, *other_bands)).convert("RGB")
    return np.asarray(pillow).reshape(image.shape)


def _as_pillow(image: Array) -> list[Image.Image]:
    """Returns one Pillow image for 1 or 3 channels of uint8, else one per channel."""
    if image.dtype == np.uint8 and image.shape[2] in _RAW_MODES:
        mode = _RAW_MODES[image.shape[2]]
        height, width = image.shape[:2]
        return [Image.frombuffer(mode, (width, height), np.ascontiguousarray(image), "raw", mode, 0, 1)]
    channels = range(image.shape[2])
    return [Image.fromarray(np.ascontiguousarray(image[:, :, channel])) for channel in channels]
