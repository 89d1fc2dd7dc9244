"""Small PNG files decoded together, against Pillow."""

import io
import zlib

import datasets
import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from fedlight.data._png import plain_pngs
from fedlight.data.reading import read_images


def chunk(kind, data):
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


def png(scanlines, width, height, colour=0, depth=8, interlace=0, more=b""):
    """A file with these scanlines, each a byte for the filter and the filtered bytes."""
    head = width.to_bytes(4) + height.to_bytes(4) + bytes([depth, colour, 0, 0, interlace])
    data = chunk(b"IDAT", zlib.compress(bytes(scanlines)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + data + chunk(b"IEND", b"")


def by_pillow(file):
    pixels = np.asarray(Image.open(io.BytesIO(file)))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def saved(image, **options):
    file = io.BytesIO()
    image.save(file, "png", **options)
    return file.getvalue()


def test_each_filter_by_hand():
    rows = [
        [0, 10, 20, 250],
        [1, 1, 2, 3],  # to the left: 1, 1 + 2, 3 + 3
        [2, 1, 1, 1],  # above: 1 + 1, 3 + 1, 6 + 1
        [3, 1, 1, 250],  # half of left and above: 1 + 1, 1 + (2 + 4) // 2, 250 + (4 + 7) // 2
        [4, 5, 0, 2],  # 5 + 2; 7 is as near to 7 + 4 - 2 as 4 is not; 2 + 255 modulo 256
    ]
    file = png([byte for row in rows for byte in row], width=3, height=5)
    assert plain_pngs([file])[0, 0].tolist() == [
        [10, 20, 250], [1, 3, 6], [2, 4, 7], [2, 4, 255], [7, 7, 1],
    ]  # fmt: skip
    assert (plain_pngs([file])[0] == by_pillow(file)).all()


@pytest.mark.parametrize(("colour", "channels"), [(0, 1), (2, 3)])
@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 3), (28, 28), (64, 1)])
def test_any_bytes_with_any_filters(colour, channels, width, height):
    rng = np.random.default_rng(width)
    files = []
    for _ in range(20):
        lines = rng.integers(256, size=(height, 1 + width * channels), dtype=np.uint8)
        lines[:, 0] = rng.integers(5, size=height)
        files.append(png(lines.tobytes(), width, height, colour))
    found = plain_pngs(files)
    assert found.shape == (20, channels, height, width)
    for one, file in zip(found, files, strict=True):
        assert (one == by_pillow(file)).all()


def test_what_pillow_writes():
    rng = np.random.default_rng(0)
    for shape in [(28, 28), (32, 32, 3)]:
        images = [np.cumsum(rng.integers(9, size=shape), axis=0).astype(np.uint8) for _ in "abc"]
        files = [saved(Image.fromarray(image), compress_level=i) for i, image in enumerate(images)]
        found = plain_pngs(files).transpose(0, 2, 3, 1)
        assert (found == np.stack(images).reshape(found.shape)).all()


GOOD = png([0, 1, 2, 0, 3, 4], 2, 2)
ROTATED = Image.Exif()
ROTATED[274] = 6  # Orientation: to be turned by a quarter
TEXT = PngImagePlugin.PngInfo()
TEXT.add_text("a", "b")


@pytest.mark.parametrize(
    "file",
    [
        None,
        b"",
        b"GIF89a",
        GOOD[:40],
        GOOD[:-1],
        GOOD + b"more",
        GOOD[:45] + b"?" + GOOD[46:],  # data that do not fit their checksum
        GOOD[:30] + b"?" + GOOD[31:],  # a header that does not
        png([0, 1, 2, 0, 3], 2, 2),  # too few bytes
        png([0, 1, 2, 0, 3, 4, 5], 2, 2),
        png([0, 1, 2, 5, 3, 4], 2, 2),  # no such filter
        png([0, 1, 2, 0, 3, 4], 2, 2, interlace=1),
        png([0, 1, 0, 3], 2, 2, depth=4),
        png([0, 1, 0, 3], 0, 2),
        png([0] * 66, 65, 1),
        png([0, 1, 2, 0, 3, 4], 2, 2, colour=3, more=chunk(b"PLTE", b"abcdefghijklmno")),
        saved(Image.new("LA", (2, 2))),
        saved(Image.new("I;16", (2, 2))),
        saved(Image.new("L", (2, 2)), pnginfo=TEXT),
        saved(Image.new("L", (2, 2)), exif=ROTATED),
    ],
)
def test_other_files_are_left_to_pillow(file):
    assert plain_pngs([file]) is None
    assert plain_pngs([GOOD, file]) is None
    assert plain_pngs([GOOD, GOOD]) is not None


def column(files, mode=None):
    return datasets.Dataset.from_dict(
        {"image": [{"bytes": file, "path": None} for file in files]},
        features=datasets.Features({"image": datasets.Image(mode=mode)}),
    )


def test_a_column_is_read_as_the_datasets_library_decodes_it():
    turned = saved(Image.fromarray(np.arange(4, dtype=np.uint8).reshape(2, 2)), exif=ROTATED)
    for data in (column([GOOD, GOOD]), column([GOOD, turned]), column([GOOD], mode="RGB")):
        expected = [np.asarray(image) for image in data["image"]]
        found = read_images(data, "image")
        shape = (len(data), 2, 2, -1)
        assert (found.permute(0, 2, 3, 1).numpy() == np.stack(expected).reshape(shape)).all()


def test_a_broken_file_among_good_ones_is_named():
    broken = GOOD[:45] + b"?" + GOOD[46:]
    with pytest.raises(ValueError, match=r"cannot be decoded in row 1 .*repair it"):
        read_images(column([GOOD, broken]), "image")
    with pytest.raises(ValueError, match=r"several sizes: row 0 is \(1, 2, 2\), row 1"):
        read_images(column([GOOD, png([0, 1], 1, 1)]), "image")


def test_grey_images_beside_rgb_ones_are_named_as_such():
    rgb = saved(Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)))
    with pytest.raises(
        ValueError, match=r"1 channels \(row 0\) and with 3 \(row 1\).*mode=\"RGB\""
    ):
        read_images(column([GOOD, rgb]), "image")


def test_sizes_may_not_differ_between_chunks(monkeypatch):
    monkeypatch.setattr("fedlight.data.reading._CHUNK", 1)
    with pytest.raises(ValueError, match=r"several sizes: row 0 is \(1, 2, 2\), row 1"):
        read_images(column([GOOD, png([0, 1], 1, 1)]), "image")
    both = read_images(column([GOOD, png([0, 5, 6, 0, 7, 8], 2, 2)]), "image")
    assert both.tolist() == [[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]]
