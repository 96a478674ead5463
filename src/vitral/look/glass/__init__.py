"""The glass: a page on this machine in which one sees into a model. `vitral glass RUN` opens it.

The model that lies under it is a `look/subject.py`. Here, `shelf.py` has the pictures, `server.py` what the page asks,
`page/` the page itself: plain HTML, CSS and JavaScript modules. What hovering needs is fetched once a picture; then it
works alone.
"""
