"""Image files and pixels: decoding, and what augmentation does to them. Every function gives the same bits anywhere.

JPEG files are decoded by libjpeg-turbo (simplejpeg) with its accurate transform and smooth upsampling, which are
TensorFlow's `INTEGER_ACCURATE` pixels bit for bit; all else by Pillow. Bytes are enlarged and mirrored by OpenCV, and
made smaller by Pillow, in whole numbers both. All let go of the GIL. An image is (height, width, channels), uint8 or
float32.
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
Box = tuple[int, int, int, int]  # left, top, right, bottom

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of an image file, by channels
_RAW_MODES = {1: "L", 3: "RGB"}  # that Pillow resizes as they are; RGBA it would multiply by alpha
_GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "F")
_ORIENTATION = 0x0112  # EXIF's tag
_TRANSPOSED = (5, 6, 7, 8)  # orientations that swap height and width
_OPENCV_CHANNELS = 4  # for which it has its own code
# JPEG's markers: of the pixels, and of what may hold EXIF
_SCAN = 0xDA
_APP1 = 0xE1

cv2.setNumThreads(0)  # no threads of its own: our workers are what runs side by side


@dataclass(frozen=True)
class Header:
    """What an image file tells before it is decoded.

    Attributes:
      height: in pixels, as the image is shown.
      width: likewise.
      gray: whether it has no colors.
    """

    height: int
    width: int
    gray: bool


def read_header(data: bytes) -> Header:
    """Reads an image file's header.

    Raises:
      ValueError: it is no image that can be read; says why.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size
            if image.getexif().get(_ORIENTATION) in _TRANSPOSED:
                width, height = height, width
            return Header(height, width, image.mode in _GREY)
    except Exception as error:  # Pillow raises what its plugins do, SyntaxError and struct.error among them
        raise ValueError(_reason(error)) from error


def decode(data: bytes, channels: int) -> Pixels:
    """Decodes an image file, turned as its EXIF orientation says.

    Args:
      data: the file's bytes.
      channels: 1 gray, 3 colors, 4 colors and alpha. Alpha is left out where it is not asked for.

    Returns:
      uint8 (height, width, channels); of an animation the first image.

    Raises:
      ValueError: it is no image that can be read; says why.
    """
    pixels = _decode_jpeg(data, channels) if data[:2] == b"\xff\xd8" and channels != 4 else None
    return _decode_any(data, channels) if pixels is None else pixels


def _decode_jpeg(data: bytes, channels: int) -> Pixels | None:
    """Decodes a JPEG file; None where Pillow must try: CMYK, or one with slips that Pillow may forgive."""
    try:
        if simplejpeg.decode_jpeg_header(data)[2] in ("CMYK", "YCCK"):
            return None
        space = "GRAY" if channels == 1 else "RGB"
        pixels: Pixels = simplejpeg.decode_jpeg(data, space, fastdct=False, fastupsample=False)
    except ValueError:
        return None
    if not _has_exif(data):
        return pixels
    with Image.open(io.BytesIO(data)) as image:
        return np.ascontiguousarray(_turned(pixels, image.getexif().get(_ORIENTATION, 1)))


def _has_exif(data: bytes) -> bool:
    """Tells whether one of a JPEG file's segments before its pixels is EXIF's."""
    at = 2
    end = len(data) - 10
    while at < end and data[at] == 0xFF and data[at + 1] != _SCAN:
        if data[at + 1] == _APP1 and data[at + 4 : at + 10] == b"Exif\0\0":
            return True
        at += 1 if data[at + 1] == 0xFF else 2 + (data[at + 2] << 8 | data[at + 3])  # 0xFF fills
    return False


def _decode_any(data: bytes, channels: int) -> Pixels:
    try:
        with Image.open(io.BytesIO(data)) as image:
            orientation = image.getexif().get(_ORIENTATION, 1)
            image.load()
            if image.mode in ("I", "I;16", "I;16B", "I;16L"):  # 16 bits a pixel, of which the upper ones are kept
                wide = np.asarray(image).astype(np.int64)
                shown = Image.fromarray((np.clip(wide, 0, 65535) >> 8).astype(np.uint8))
            else:
                shown = image
            pixels = np.asarray(shown.convert(_MODES[channels]))
    except Exception as error:  # as above
        raise ValueError(_reason(error)) from error
    return np.ascontiguousarray(_turned(pixels.reshape(*pixels.shape[:2], channels), orientation))


def _turned(pixels: Pixels, orientation: int) -> Pixels:
    """Turns an image as EXIF's orientation, 1 to 8, says."""
    if orientation in _TRANSPOSED:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "no image format that is known" if "cannot identify" in text else text or type(error).__name__


def resize(image: Array, size: tuple[int, int], box: Box | None = None) -> Array:
    """Resizes an image, or a window of it, bilinear and antialiased: every pixel of it under the filter counts.

    The filter is as wide as an output pixel where the image gets smaller, and as an input pixel where it gets larger.
    There antialiasing changes nothing, and OpenCV does it for bytes in a quarter of Pillow's time; they round each in
    its way, and differ by at most 2 of 255. Which of them it is, dtype and sizes alone say.

    Args:
      image: uint8 or float32 (H, W, C).
      size: height and width to get.
      box: the window, cut out before; null: all.

    Returns:
      The same dtype, (*size, C).
    """
    if box is not None:
        image = image[box[1] : box[3], box[0] : box[2]]
    height, width, channels = image.shape
    if (height, width) == size:
        return image
    if image.dtype == np.uint8 and height <= size[0] and width <= size[1] and channels <= _OPENCV_CHANNELS:
        larger: Array = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR_EXACT)
        return larger.reshape(*size, channels)
    bands = [np.asarray(band.resize(size[::-1], Image.Resampling.BILINEAR)) for band in _as_pillow(image)]
    return _joined(bands, image)


def rotate(image: Array, degrees: float) -> Array:
    """Turns an image counter-clockwise around its middle, bilinear; what comes from outside is 0."""
    bands = [np.asarray(band.rotate(degrees, Image.Resampling.BILINEAR)) for band in _as_pillow(image)]
    return _joined(bands, image)


def flip(image: Array, *, vertical: bool = False) -> Array:
    """Mirrors an image: left is right, or `vertical`, top is bottom."""
    if vertical:
        return image[::-1]
    if image.dtype == np.uint8 and image.shape[2] <= _OPENCV_CHANNELS:  # NumPy copies steps of three bytes slowly
        mirrored: Array = cv2.flip(image, 1)
        return mirrored.reshape(image.shape)
    return image[:, ::-1]


def crop(image: Array, top: int, left: int, size: tuple[int, int]) -> Array:
    """Takes a window; what lies outside of the image is 0.

    Args:
      image: (H, W, C).
      top: of the window, may be negative.
      left: likewise.
      size: height and width of the window.
    """
    height, width = image.shape[:2]
    bottom = top + size[0]
    right = left + size[1]
    if top >= 0 and left >= 0 and bottom <= height and right <= width:
        return image[top:bottom, left:right]
    window = np.zeros((*size, image.shape[2]), image.dtype)
    rows = slice(max(top, 0), min(bottom, height))
    columns = slice(max(left, 0), min(right, width))
    if rows.start < rows.stop and columns.start < columns.stop:
        window[rows.start - top : rows.stop - top, columns.start - left : columns.stop - left] = image[rows, columns]
    return window


def center_box(height: int, width: int, size: tuple[int, int], share: float) -> Box:
    """Returns the largest window of a size's shape in the middle of an image, times a share of it."""
    scale = min(height / size[0], width / size[1]) * share
    tall = max(1, round(size[0] * scale))
    wide = max(1, round(size[1] * scale))
    top = (height - tall) // 2
    left = (width - wide) // 2
    return left, top, left + wide, top + tall


def color(image: Pixels, brightness: float, contrast: float, saturation: float, hue: float) -> Pixels:
    """Changes brightness, contrast, saturation and hue, in this order.

    Args:
      image: uint8 (H, W, 1 or 3); the last two have no effect on one channel.
      brightness: factor; 1 changes nothing.
      contrast: factor around the mean gray.
      saturation: factor around each pixel's gray.
      hue: share of the color circle to turn by; 0 changes nothing.
    """
    (shown,) = _as_pillow(image)
    if brightness != 1:
        shown = Image.blend(Image.new(shown.mode, shown.size), shown, brightness)
    if contrast != 1:
        histogram = shown.convert("L").histogram()
        mean = math.floor(sum(value * count for value, count in enumerate(histogram)) / sum(histogram) + 0.5)
        flat = Image.new("L", shown.size, mean).convert(shown.mode)
        shown = Image.blend(flat, shown, contrast)
    if shown.mode == "RGB":
        if saturation != 1:
            shown = Image.blend(shown.convert("L").convert("RGB"), shown, saturation)
        turn = round(hue * 256) % 256
        if turn:
            tone, *rest = shown.convert("HSV").split()
            shown = Image.merge("HSV", (tone.point(lambda value: (value + turn) % 256), *rest)).convert("RGB")
    return np.asarray(shown).reshape(image.shape)


def _as_pillow(image: Array) -> list[Image.Image]:
    """Returns an image as Pillow's: one for 1 or 3 channels of uint8, else one a channel."""
    mode = _RAW_MODES.get(image.shape[2]) if image.dtype == np.uint8 else None
    if mode is not None:
        height, width = image.shape[:2]
        return [Image.frombuffer(mode, (width, height), np.ascontiguousarray(image), "raw", mode, 0, 1)]
    return [Image.fromarray(np.ascontiguousarray(image[:, :, channel])) for channel in range(image.shape[2])]


def _joined(bands: list[Array], like: Array) -> Array:
    if len(bands) == 1:
        return bands[0].reshape(*bands[0].shape[:2], like.shape[2])
    return np.stack(bands, axis=2)
