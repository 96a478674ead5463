"""A model as a page for a browser: one file, or a folder for a web server. The page's own files are in `page/`."""
