"""`vitral serve`: models behind HTTP. A front owns the sockets, without torch; model processes stand behind it."""
