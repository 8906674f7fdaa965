"""Pictures that tests read."""


def read_png(path):
    """Pixels: rows, columns and colours, 0 to 1."""
    from matplotlib import image

    return image.imread(path)


def check_colours(path, colours):
    """Every one of the colours (#rrggbb) is on more than 50 pixels."""
    pixels = (read_png(path)[..., :3] * 255).round().astype(int)
    for colour in colours:
        wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == wanted).all(-1).sum() > 50, (path, colour)
