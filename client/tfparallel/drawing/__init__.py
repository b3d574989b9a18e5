"""How every picture of the client is drawn.

`palette` has the colors, one set for each concept. `svg` turns what matplotlib draws into SVG with
a title, a description and names that stay unique in a page.
"""
