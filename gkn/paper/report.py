"""stub"""


def write_pages(place, scale):
    return place.results / "index.html"
