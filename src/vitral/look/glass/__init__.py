"""The glass: a page on this machine in which one sees into a model. `vitral glass RUN` opens it.

Its model is an `InspectedModel` (look/inspected_model.py). Here, `shelf.py` has the pictures, `server.py` answers the
requests of the page, and `page/` is the page itself: plain HTML, CSS and JavaScript modules. What hovering needs is
fetched once per picture; then it needs no server.
"""
