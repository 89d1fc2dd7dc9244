"""Decodes many small PNG files at once.

A general decoder spends most of its time per file, not per pixel, if images are as small as those
of MNIST and CIFAR-10. Here the files of a column are decompressed one by one, and the rest is
arithmetic on all of them together. Only the plain kind of file is read; for others there is Pillow.

Source: W3C, "Portable Network Graphics (PNG) Specification (Third Edition)", sections 5, 9 and 11,
https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_HEAD = 33  # bytes of the signature and of the chunk IHDR
_CHANNELS = {0: 1, 2: 3}  # colour types: grey, RGB
_LARGEST = 64  # pixels a side; Pillow's time per file does not matter for larger ones

Bytes = NDArray[np.uint8]
Wide = NDArray[np.int16]


def plain_pngs(files: Sequence[object]) -> Bytes | None:
    """Decode PNG files of one size and kind, or return None if any needs another decoder.

    Args:
        files: Their bytes. They must be of 8 bits per channel, grey or RGB, at most 64 pixels wide
            and high, not interlaced, and have no chunk but a header, one of data, and the end.

    Returns:
        Pixels of shape [files, channels, height, width].
    """
    first = files[0]
    shape = _shape(first) if isinstance(first, bytes) else None
    if shape is None:
        return None
    channels, height, width = shape
    head, size = files[0][:_HEAD], height * (1 + width * channels)  # type: ignore[index]
    lines = []
    for file in files:
        scanlines = _scanlines(file, head)
        if scanlines is None or len(scanlines) != size:
            return None
        lines.append(scanlines)
    filtered = np.frombuffer(bytearray().join(lines), dtype=np.uint8).reshape(
        len(files), height, 1 + width * channels
    )
    if filtered[:, :, 0].max() > 4:
        return None
    pixels = filtered[:, :, 1:].reshape(len(files), height, width, channels)
    _undo_filters(filtered[:, :, 0], pixels)
    return pixels.transpose(0, 3, 1, 2)


def _shape(file: bytes) -> tuple[int, int, int] | None:
    """Channels, height and width from a file's header; None if it is not of the plain kind."""
    head = file[:_HEAD]
    if head[:16] != _SIGNATURE + b"\x00\x00\x00\rIHDR" or len(head) < _HEAD:
        return None
    if zlib.crc32(head[12:29]) != int.from_bytes(head[29:]):
        return None
    width, height = int.from_bytes(head[16:20]), int.from_bytes(head[20:24])
    depth, colour, compression, filters, interlace = head[24:29]
    if (depth, compression, filters, interlace) != (8, 0, 0, 0) or colour not in _CHANNELS:
        return None
    if not (0 < width <= _LARGEST and 0 < height <= _LARGEST):
        return None
    return _CHANNELS[colour], height, width


def _scanlines(file: object, head: bytes) -> bytes | None:
    """The decompressed data of a file; None if it has another header, or is not plain or broken."""
    if not isinstance(file, bytes) or file[:_HEAD] != head or file[-12:] != _END:
        return None
    # After the header: length, "IDAT", the data, their checksum; then the end.
    if file[37:41] != b"IDAT" or int.from_bytes(file[33:37]) != len(file) - _HEAD - 12 - 12:
        return None
    if zlib.crc32(file[37:-16]) != int.from_bytes(file[-16:-12]):
        return None
    try:
        return zlib.decompress(file[41:-16])
    except zlib.error:
        return None


def _undo_filters(filters: Bytes, pixels: Bytes) -> None:
    """Add the prediction of its row's filter to each byte, in place.

    Args:
        filters: The filter of each row, [files, height].
        pixels: The filtered bytes, [files, height, width, channels]; sums are modulo 256.
    """
    above = np.zeros_like(pixels[:, 0])
    for y in range(pixels.shape[1]):
        row, filter_ = pixels[:, y], filters[:, y]
        left = filter_ == 1
        if left.any():
            row[left] = row[left].cumsum(axis=1, dtype=np.uint8)
        up = filter_ == 2
        if up.any():
            row[up] += above[up]
        for number, predict in ((3, _average), (4, _paeth)):
            chosen = filter_ == number
            if chosen.any():
                row[chosen] = _undo(row[chosen], above[chosen], predict)
        above = row


def _undo(row: Bytes, above: Bytes, predict: Callable[..., Bytes]) -> Bytes:
    """Undo a filter whose prediction needs the finished pixel to the left.

    Args:
        row: Filtered bytes, [files, width, channels].
        above: The finished row above.
        predict: Maps the bytes to the left, above, and above on the left to the prediction.
    """
    # The loop is over the pixels of a row, so the files come last.
    row, wide = row.transpose(1, 2, 0).copy(), above.transpose(1, 2, 0).astype(np.int16)
    left = above_left = np.zeros_like(wide[0])
    for x in range(len(row)):
        row[x] += predict(left, wide[x], above_left)
        left, above_left = row[x].astype(np.int16), wide[x]
    return row.transpose(2, 0, 1)


def _average(left: Wide, above: Wide, above_left: Wide) -> Bytes:
    return ((left + above) >> 1).astype(np.uint8)


def _paeth(left: Wide, above: Wide, above_left: Wide) -> Bytes:
    """Whichever of the three is closest to ``left + above - above_left``; the first if equal."""
    to_left, to_above = np.abs(above - above_left), np.abs(left - above_left)
    to_above_left = np.abs(left + above - 2 * above_left)
    best = np.where(to_above <= to_above_left, above, above_left)
    is_left = (to_left <= to_above) & (to_left <= to_above_left)
    return np.where(is_left, left, best).astype(np.uint8)
