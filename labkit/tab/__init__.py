"""The course in a browser's tab: the book's tasks run beside the text, and nothing is installed.

`make book` writes one bundle and a few scripts beside the chapters (`labkit.tab.site`). A worker of
the page loads Pyodide and runs `labkit.tab.driver` in it, which judges as `make lab-NN` does.
"""
